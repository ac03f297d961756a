package plug

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/child"
	"holdfast/internal/platform/linux/flock"
	"holdfast/internal/platform/linux/netns"
	"holdfast/internal/platform/linux/standby"
)

// Descriptors of a watcher: its end of the holder's socket, and the lock.
const (
	lineFD = child.SocketFD
	lockFD = lineFD + 1
)

// startLimit is how long a watcher may take to start.
const startLimit = 10 * time.Second

// takeLock locks the plug of this network namespace: a file in a directory that only
// root can enter. protect.ErrTaken.
func takeLock() (*os.File, error) {
	id, err := netns.ID(netns.OfProcess(0))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(protect.LockDir, 0o700); err != nil {
		return nil, err
	}
	for {
		lock, err := flock.Open(filepath.Join(protect.LockDir, id+"-plug.lock"), os.O_RDWR|os.O_CREATE)
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			return nil, fmt.Errorf("the plug of this host: %w", protect.ErrTaken)
		case errors.Is(err, os.ErrNotExist):
			continue // the last holder has just removed it
		case err != nil:
			return nil, err
		}
		return lock, nil
	}
}

// unlock releases the lock and removes its file. No other process has the lock.
func unlock(lock *os.File) error { return errors.Join(os.Remove(lock.Name()), lock.Close()) }

// watcher is the holder's handle of the watcher process.
type watcher struct {
	line   *net.UnixConn // its end tells the watcher that the holder is gone
	lock   *os.File      // open in both processes
	exited chan struct{}
	failed error // once exited
}

// startWatcher starts a watcher and returns when it runs. The watcher then owns lock.
// After an error, the caller still owns it.
func startWatcher(lock *os.File) (*watcher, error) {
	cmd := child.Command([]string{"/proc/self/exe", RoleWatcher}, "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{lock} // lockFD
	line, err := child.Start(cmd, unix.SOCK_STREAM, cmd.Start)
	if err != nil {
		return nil, fmt.Errorf("start a watcher: %w", err)
	}
	w := &watcher{line: line, lock: lock, exited: make(chan struct{})}
	go func() {
		w.failed = cmd.Wait()
		close(w.exited)
	}()
	if err = line.SetReadDeadline(time.Now().Add(startLimit)); err == nil {
		_, err = io.ReadFull(line, make([]byte, 1))
	}
	if err != nil {
		_ = cmd.Process.Kill() // it may have ended
		<-w.exited
		return nil, errors.Join(fmt.Errorf("start a watcher: it does not say that it runs: %w", err), w.failed, line.Close())
	}
	return w, nil
}

// stop ends the watcher and waits for its end. The watcher removes a plug that is still
// on lo.
func (w *watcher) stop() error {
	err := w.line.Close()
	<-w.exited
	return errors.Join(err, w.failed, unlock(w.lock))
}

// Watch is the main function of a watcher, in the process that a hold started:
// it waits until the holder is gone and removes its plug. It returns the exit
// code.
func Watch() int {
	standby.Settle(lockFD, nil)
	line := os.NewFile(lineFD, "holder")
	if _, err := line.Write([]byte{1}); err != nil {
		return 1
	}
	// The holder sends nothing; EOF or an error ends the wait.
	_, _ = io.Copy(io.Discard, line)
	if err := clear(); err != nil {
		fmt.Fprintln(os.Stderr, "error: remove the plug of a hold that is over:", err)
		return 1
	}
	return 0
}
