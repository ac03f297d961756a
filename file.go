package holdfast

import "time"

// FileType is the type of a file in a session's container.
type FileType string

// The types.
const (
	RegularFile  FileType = "file"
	Directory    FileType = "directory"
	SymbolicLink FileType = "symlink"
	NamedPipe    FileType = "fifo"
	SocketFile   FileType = "socket"
	DeviceFile   FileType = "device"
)

// File describes a file in a session's container. Paths and ids are the container's.
type File struct {
	Path     string    `json:"path"` // absolute; bytes that are no UTF-8 are replaced
	Name     string    `json:"name"` // its last element, "/" for the root
	Type     FileType  `json:"type"`
	Size     int64     `json:"size"` // bytes
	Mode     string    `json:"mode"` // octal permissions with setuid, setgid and sticky bit, such as 0644
	UID      int       `json:"uid"`  // 65534 for an id that the container does not have
	GID      int       `json:"gid"`
	Modified time.Time `json:"modified"`
	Target   string    `json:"target,omitempty"` // what a symbolic link contains
	// Attributes are the extended attributes of the namespace user, without that prefix, if
	// they have at most MaxAttributes bytes. Bytes that are no UTF-8 are replaced.
	Attributes map[string]string `json:"attributes,omitempty"`
}

// MaxAttributes bounds the extended attributes of a file: the bytes of their names, each with
// the prefix "user.", and of their values. A file system may keep fewer.
const MaxAttributes = 4096

// WriteFile says how a file is written.
type WriteFile struct {
	// Mode has the permissions, 0 to 01777; setuid and setgid bits are dropped. nil keeps those of the old file; a new one
	// gets 0644.
	Mode *uint32
	// UID and GID are the container's ids. nil keeps those of the old file; a new one gets
	// 0.
	UID, GID *int
	// Attributes are the file's extended attributes of the namespace user, without that
	// prefix. It has no others of the namespace when it is written.
	Attributes map[string]string
}

// UnpackFiles says how an archive is unpacked.
type UnpackFiles struct {
	Owners bool // files get the ids of the archive; otherwise 0
}

// FileEventKind is what happened to a file.
type FileEventKind string

// The kinds.
const (
	WatchReady    FileEventKind = "ready"  // the first event: everything after it is reported
	FileCreated   FileEventKind = "create" // it is new, or has got this name
	FileWritten   FileEventKind = "write"
	FileRemoved   FileEventKind = "remove"
	FileRenamed   FileEventKind = "rename" // it had this name
	FileChanged   FileEventKind = "chmod"  // its mode, owner or times
	EventsLost    FileEventKind = "lost"   // the reader was too slow, or there are too many directories
	WatchedIsGone FileEventKind = "gone"   // the watched file was removed; the last event
	WatchEnds     FileEventKind = "end"    // the session ends; the last event
	WatchAlive    FileEventKind = "ping"   // nothing happened for a while
)

// FileEvent is a change below a watched path.
type FileEvent struct {
	Kind      FileEventKind `json:"kind"`
	Path      string        `json:"path"` // the file's; that of the watch if the event is about it
	Directory bool          `json:"directory,omitempty"`
	Time      time.Time     `json:"time"` // when the agent read the event
}

// Unpacked is what was unpacked of an archive.
type Unpacked struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`   // of contents
	Skipped int64 `json:"skipped"` // devices
}
