package files

import (
	"bytes"
	"context"
	"encoding/binary"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast"
)

// read reads events of inotify(7), and reports whether the watched file is gone.
func (w *watch) read(ctx context.Context, buf []byte) (gone bool, err error) {
	for len(buf) >= unix.SizeofInotifyEvent && err == nil && !gone {
		wd := int(int32(binary.NativeEndian.Uint32(buf)))
		mask := binary.NativeEndian.Uint32(buf[4:])
		size := int(binary.NativeEndian.Uint32(buf[12:]))
		buf = buf[unix.SizeofInotifyEvent:]
		name, _, _ := bytes.Cut(buf[:size], []byte{0})
		buf = buf[size:]
		gone, err = w.event(ctx, wd, mask, string(name))
	}
	return gone, err
}

// event reports one event.
func (w *watch) event(ctx context.Context, wd int, mask uint32, name string) (gone bool, err error) {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		w.send(holdfast.EventsLost, "", false)
		return false, nil
	}
	at, known := w.paths[wd]
	if !known {
		return false, nil // of a watch that was given up
	}
	if mask&unix.IN_IGNORED != 0 {
		delete(w.paths, wd)
		if wd == w.topWD {
			w.send(holdfast.WatchedIsGone, "", false)
		}
		return wd == w.topWD, nil
	}
	if name == "" {
		w.self(wd, mask)
		return false, nil
	}
	rel, dir := path.Join(at, name), mask&unix.IN_ISDIR != 0
	for _, k := range kinds() {
		if mask&k.mask != 0 {
			w.send(k.kind, rel, dir)
		}
	}
	if !dir || !w.recursive {
		return false, nil
	}
	if mask&unix.IN_MOVED_FROM != 0 {
		w.forget(rel)
	}
	if mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
		return false, w.descend(ctx, rel, true)
	}
	return false, nil
}

type kind struct {
	mask uint32
	kind holdfast.FileEventKind
}

func kinds() []kind {
	return []kind{
		{unix.IN_CREATE | unix.IN_MOVED_TO, holdfast.FileCreated},
		{unix.IN_MODIFY, holdfast.FileWritten},
		{unix.IN_ATTRIB, holdfast.FileChanged},
		{unix.IN_DELETE, holdfast.FileRemoved},
		{unix.IN_MOVED_FROM, holdfast.FileRenamed},
	}
}

// self reports an event about the watched file itself. The directories below it report
// through the one above them.
func (w *watch) self(wd int, mask uint32) {
	if wd != w.topWD {
		return
	}
	for _, k := range []kind{{unix.IN_MODIFY, holdfast.FileWritten}, {unix.IN_ATTRIB, holdfast.FileChanged}, {unix.IN_MOVE_SELF, holdfast.FileRenamed}} {
		if mask&k.mask != 0 {
			w.send(k.kind, "", false)
		}
	}
}

// forget gives up the watches of a directory that was moved, and of those below it.
func (w *watch) forget(rel string) {
	for wd, p := range w.paths {
		if p == rel || strings.HasPrefix(p, rel+"/") {
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd)) // it may have ended
			delete(w.paths, wd)
		}
	}
}
