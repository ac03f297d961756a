// Package files reads and changes the files of running sessions, from outside their
// containers: through the root directory of each container's init. No program of the image
// is needed, and a paused container does not matter.
//
// The container is hostile: it may change links, directories and mounts at any time. Package
// inroot resolves each path once, with the container's root; all that follows works on
// descriptors. Devices and named pipes are never opened, and files of the kernel, such as
// those of proc(5), are neither read nor written. Work on a container runs in a thread with
// the container's ids and without other rights than over files. If a file system hangs, the
// caller gets an error, and the thread keeps its place among the bounded ones until the
// container ends.
//
// gVisor keeps a container's files to itself. There the same operations run in Main, a program
// in the container, with the rights of the container's root user.
package files

import "time"

// Bounds.
const (
	maxOfSession      = 8        // calls at once
	maxOfNode         = 64       // likewise
	maxWatchesSession = 4        // watches at once
	maxWatchesNode    = 32       // likewise; the kernel's default limit of root is 128 (fs.inotify.max_user_instances)
	maxWatchedDirs    = 1024     // directories of one watch
	maxList           = 10_000   // entries of one list
	maxListBytes      = 2 << 20  // bytes of names in one list
	maxPath           = 4095     // bytes (PATH_MAX without its end)
	maxMemoryFile     = 64 << 20 // bytes that one call writes to a tmpfs: the kernel charges the agent for them
	chunk             = 256 << 10
	giveUp            = 2 * time.Second // how long a canceled call waits for its thread
	pingEvery         = 15 * time.Second
)
