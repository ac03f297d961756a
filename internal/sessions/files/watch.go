package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/linux/inroot"
)

// Watch calls each for the changes of a file, or of the entries of a directory. With recursive, it
// reports those of the directory's whole tree. It returns when ctx is done, each returns an error, the
// file is removed, or the session ends. The first event is WatchReady. A link is followed. Changes
// through hard links in other directories, and through memory mappings, are not reported (inotify(7)).
func (f *Files) Watch(ctx context.Context, key holdfast.SessionKey, p string, recursive bool, each func(holdfast.FileEvent) error) error {
	release, err := f.take(&f.watches, key, "watches")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	events, ended := make(chan holdfast.FileEvent, maxEvents), make(chan error, 1)
	go func() { ended <- f.watch(ctx, key, p, recursive, events) }()
	alive := time.NewTicker(pingEvery)
	defer alive.Stop()
	for {
		var e holdfast.FileEvent
		select {
		case e = <-events:
		case err := <-ended:
			if err = drained(events, each, err); !errors.Is(err, errLeft) {
				return err
			}
			return each(holdfast.FileEvent{Kind: holdfast.WatchEnds, Path: p, Time: time.Now()})
		case <-alive.C:
			e = holdfast.FileEvent{Kind: holdfast.WatchAlive, Path: p, Time: time.Now()}
		}
		if err := each(e); err != nil {
			cancel(err)
			<-ended
			return err
		}
	}
}

// maxEvents is the number of events that wait for their reader.
const maxEvents = 4096

// drained hands over the events before the end.
func drained(events <-chan holdfast.FileEvent, each func(holdfast.FileEvent) error, err error) error {
	for len(events) > 0 {
		if err := each(<-events); err != nil {
			return err
		}
	}
	return err
}

func (f *Files) watch(ctx context.Context, key holdfast.SessionKey, p string, recursive bool, events chan<- holdfast.FileEvent) error {
	_, err := f.call(ctx, key, p, request{Op: "watch", Recursive: recursive}, streams{events: events})
	return err
}

func watchTree(ctx context.Context, t *tree, p string, q request, s streams) (reply, error) {
	w := &watch{root: t.root, top: p, recursive: q.Recursive, events: s.events, paths: map[int]string{}}
	return reply{}, w.run(ctx, t)
}

// watch is one instance of inotify(7).
type watch struct {
	root      *inroot.Root
	top       string
	recursive bool
	events    chan<- holdfast.FileEvent
	inotify   *os.File // non-blocking: its Fd is never called
	fd        int
	topFile   *os.File
	topWD     int
	paths     map[int]string // below top, of each watched file; "" is top
	lost      bool           // reported, and the reader has not caught up
	full      bool           // reported
}

// watched is what is watched of each file.
const watched = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_MOVE_SELF | unix.IN_ATTRIB | unix.IN_EXCL_UNLINK

func (w *watch) run(ctx context.Context, t *tree) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	w.fd, w.inotify = fd, os.NewFile(uintptr(fd), "inotify")
	defer w.inotify.Close()
	if w.topFile, err = t.root.Open(w.top, unix.O_PATH); err != nil {
		return err
	}
	defer w.topFile.Close()
	about, err := t.describe(w.topFile, w.top)
	if err != nil {
		return err
	}
	if about.Type != holdfast.RegularFile && about.Type != holdfast.Directory {
		return &Error{fmt.Sprintf("it is a %s", about.Type), holdfast.ErrBadFile}
	}
	if w.topWD, err = w.add(w.topFile, ""); err != nil {
		return err
	}
	if w.recursive && about.Type == holdfast.Directory {
		if err := w.descend(ctx, "", false); err != nil {
			return err
		}
	}
	w.send(holdfast.WatchReady, "", false)
	defer context.AfterFunc(ctx, func() { _ = w.inotify.SetReadDeadline(time.Now()) })()
	buf := make([]byte, 64<<10)
	for {
		if err := w.inotify.SetReadDeadline(time.Now().Add(lookEvery)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := w.inotify.Read(buf)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if gone, err := w.read(ctx, buf[:n]); gone || err != nil {
			return err
		}
		if w.removed() {
			w.send(holdfast.WatchedIsGone, "", false)
			return nil
		}
	}
}

// lookEvery is the interval at which the watched file is checked: the kernel does not
// report the removal of a file that is open.
const lookEvery = time.Second

func (w *watch) removed() bool {
	var st unix.Stat_t
	return unix.Fstat(int(w.topFile.Fd()), &st) == nil && st.Nlink == 0
}

// add watches an open file.
func (w *watch) add(f *os.File, rel string) (int, error) {
	wd, err := unix.InotifyAddWatch(w.fd, inroot.Self(f), watched)
	if err == nil {
		w.paths[wd] = rel
	}
	return wd, err
}

// send reports an event. If the reader is too slow, it gets one event that others are lost.
func (w *watch) send(kind holdfast.FileEventKind, rel string, dir bool) {
	e := holdfast.FileEvent{Kind: kind, Path: path.Join(w.top, rel), Directory: dir, Time: time.Now().UTC()}
	if len(w.events) >= maxEvents-2 { // the last places are for the loss and the end
		if w.lost && kind != holdfast.WatchedIsGone {
			return
		}
		if kind != holdfast.WatchedIsGone {
			w.lost, e = true, holdfast.FileEvent{Kind: holdfast.EventsLost, Path: w.top, Time: e.Time}
		}
	} else {
		w.lost = false
	}
	w.events <- e
}

// descend watches the directories below a directory. If it is new, descend reports what is in
// them: files may have been made before the directory was watched.
func (w *watch) descend(ctx context.Context, rel string, isNew bool) error {
	todo := []string{rel}
	for len(todo) > 0 {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		at := todo[0]
		todo = todo[1:]
		below, err := w.enter(at, isNew)
		if err != nil {
			return err
		}
		todo = append(todo, below...)
	}
	return nil
}

// enter watches a directory and returns those in it. One that is gone is not an error.
func (w *watch) enter(rel string, isNew bool) (dirs []string, err error) {
	dir, err := w.root.OpenBelow(w.topFile, cleanRel(rel), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, nil // it was removed or replaced meanwhile
	}
	defer dir.Close()
	if kernel, err := ofKernel(dir); err != nil || kernel {
		return nil, err
	}
	if rel != "" {
		if len(w.paths) >= maxWatchedDirs {
			if !w.full {
				w.send(holdfast.EventsLost, rel, true)
			}
			w.full = true
			return nil, nil
		}
		if _, err := w.add(dir, rel); err != nil {
			return nil, err
		}
	}
	for {
		entries, err := dir.ReadDir(128)
		for _, e := range entries {
			p := path.Join(rel, e.Name())
			if isNew {
				w.send(holdfast.FileCreated, p, e.IsDir())
			}
			if e.IsDir() && len(dirs) <= maxWatchedDirs {
				dirs = append(dirs, p)
			}
		}
		if err != nil {
			return dirs, nil // the end, or it was removed meanwhile
		}
	}
}

func cleanRel(rel string) string {
	if rel == "" {
		return "."
	}
	return rel
}
