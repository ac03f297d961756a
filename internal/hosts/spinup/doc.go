// Package spinup measures how long each phase of a container's start takes, and
// reports which phases are slow.
//
// A Reducer turns the stream of a pull into figures, by layer and in all. A
// Timer times what follows the pull and makes a Record of the whole. Rules say
// what slow is. A Store keeps records on disk; Summarize and Compare say how
// often phases are slow in groups of them, and whether two groups differ by
// more than chance. Everything but the Store is pure.
//
// # What a pull's stream tells, and what the figures are
//
// The stream was made to draw progress bars. It is lossy: any line of a layer
// may be missing, and the last count before "Verifying Checksum" may be far
// below the layer's size. So:
//
//   - A layer's download goes from its first "Downloading" to its "Verifying
//     Checksum", "Download complete" or whatever later line comes first, less
//     the waits before retries. The wall time of a pull's download is the union
//     of its layers' intervals; what the layers took in sum counts parallel
//     downloads more than once and is kept apart.
//   - A layer that was fetched counts with its full size, however far its last
//     count came, and once, however often it was begun again: after a resumed
//     retry the engine counts from 0 to what was left.
//   - A layer's extraction goes from its first "Extracting" to its "Pull
//     complete". Where there is no "Extracting" it goes from the later of its
//     own download's end and the "Pull complete" before its own: engines
//     extract the layers of an image one after the other. Bytes of an
//     extraction are compressed bytes. The gap between a layer's download and
//     its extraction is its waiting for the layers below.
//   - A layer that another pull is fetching already is seen at once
//     with a part of its bytes, or complete. An engine shares chains of layers,
//     so all that such a pull fetches is taken for the other's: it is joined,
//     counts no bytes and has no throughput.
//   - Whether the image was in the cache is told by the layers. The line
//     "Image is up to date" is not to be trusted: a pull that another joined
//     may end with it, when the other named the image first.
//
// All of this was measured on the pull stream of Docker 20.10 and checked against the sources of moby: progressreader.go for
// the counts, daemon/internal/distribution/xfer for joins and retries,
// daemon/containerd/progress.go for the containerd image store, which looks at
// itself every 100 ms and so is off by up to that at each end of an interval; see
// containerd.go for what that changes.
package spinup
