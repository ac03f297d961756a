// Package spinup measures how long each phase of a container's start takes, and
// reports which phases are slow.
//
// A Reducer turns the stream of a pull into figures, for each layer and for the whole
// pull. A Timer times the phases after the pull and makes a Record of the spin-up.
// Rules define which phases are slow. A Store keeps records on disk. A Report states
// how often phases are slow in groups of records, and whether two groups differ by more
// than chance. Only the Store reads and writes files.
//
// # The stream of a pull, and the figures
//
// An engine makes the stream for progress bars. The stream is lossy: any line of a
// layer may be missing, and the last count before "Verifying Checksum" may be far below
// the layer's size. Therefore:
//
//   - A layer's download lasts from its first "Downloading" to its "Verifying
//     Checksum", "Download complete" or the first later line, without the waits before
//     retries. The wall time of a pull's download is the union of the intervals of its
//     layers. The sum over the layers counts parallel downloads more than once and is a
//     separate figure.
//   - A fetched layer counts with its full size, whatever its last count was. It counts
//     once, even if the download was begun again: after a resumed retry the engine counts
//     from 0 to the remaining bytes.
//   - A layer's extraction lasts from its first "Extracting" to its "Pull complete".
//     Engines extract the layers of an image one after the other. If there is no
//     "Extracting", the extraction begins at the end of the layer's download or at the
//     "Pull complete" before its own, whichever is later. Bytes of an extraction are
//     compressed bytes. Between its download and its extraction a layer waits for the
//     layers below.
//   - A layer that another pull is fetching is present at once, in part or completely.
//     An engine shares chains of layers, so all layers that such a pull fetches are
//     attributed to the other pull. The pull is joined: it counts no bytes and has no
//     throughput.
//   - The layers show whether the image was in the cache. The line "Image is up to date"
//     is not reliable: a pull that another pull joined may end with it, if the other
//     pull named the image first.
//
// All of this was measured with Docker 20.10 and checked against the sources of moby:
// progressreader.go for the counts, daemon/internal/distribution/xfer for joins and
// retries, daemon/containerd/progress.go for the containerd image store. That store
// polls its downloads every 100 ms, so each end of an interval is off by up to that;
// see containerd.go for the consequences.
package spinup
