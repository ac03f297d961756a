package plug

import (
	"errors"
	"sync"

	"holdfast/internal/hosts/protect"
	qdisc "holdfast/internal/platform/linux/plug"
)

// laid is a plug on lo that this process made, with its watcher. Its methods may be called from
// any goroutine.
type laid struct {
	plug     *qdisc.Plug
	watcher  *watcher
	watching sync.WaitGroup

	mu   sync.Mutex
	hold *held // the current hold; nil: none
	gone bool  // it was removed
	err  error // of the removal
}

// lay puts an open plug on lo. protect.ErrTaken if another process has one there.
func lay() (*laid, error) {
	lock, err := takeLock()
	if err != nil {
		return nil, err
	}
	var w *watcher
	if err = clear(); err == nil {
		w, err = startWatcher(lock)
	}
	if err != nil {
		return nil, errors.Join(err, unlock(lock))
	}
	l := &laid{watcher: w}
	if l.plug, err = qdisc.Install(device); err != nil {
		return nil, errors.Join(err, clear(), w.stop())
	}
	l.watching.Go(l.watch)
	return l, nil
}

// watch removes the plug when the watcher dies, because no other process would remove it
// later.
func (l *laid) watch() {
	<-l.watcher.exited
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.gone {
		l.drop()
		l.err = errors.Join(errors.New("the watcher of the plug has died, and all connections were released"), l.err)
	}
}

// drop removes the plug. The lock is held.
func (l *laid) drop() {
	if l.hold != nil {
		l.hold.look()
		l.hold.over = true
	}
	l.gone, l.err = true, l.plug.Remove()
}

// lost reports whether the plug was removed.
func (l *laid) lost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone
}

// close begins a hold of some addresses.
func (l *laid) close(h *held, addresses []protect.Address) error {
	var matches []qdisc.Match
	for _, a := range addresses {
		matches = append(matches, qdisc.Match{Addr: a.Addr, Port: a.Port})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return l.err
	}
	if err := l.plug.Hold(matches...); err != nil {
		return err
	}
	l.hold = h
	return nil
}

// open ends a hold, and leaves the plug.
func (l *laid) open() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = nil
	if l.gone {
		return l.err
	}
	return l.plug.Release()
}

// remove removes the plug and ends the watcher.
func (l *laid) remove() error {
	l.mu.Lock()
	if !l.gone {
		l.drop()
	}
	err := l.err
	l.mu.Unlock()
	err = errors.Join(err, l.watcher.stop())
	l.watching.Wait()
	return err
}
