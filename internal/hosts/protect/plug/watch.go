package plug

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/platform/child"
	"holdfast/internal/platform/linux/standby"
)

// Descriptors of a watcher: its end of the holder's socket, and the name.
const (
	lineFD = child.SocketFD
	nameFD = lineFD + 1
)

// startLimit is how long a watcher may take to start.
const startLimit = 10 * time.Second

// takeName binds the name of the user of this network namespace's plug.
// Abstract addresses are per network namespace (unix(7)).
func takeName() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	name := os.NewFile(uintptr(fd), "name")
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: "@holdfast/protect/plug"})
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("the plug of this host: %w", protect.ErrTaken)
	}
	if err != nil {
		return nil, errors.Join(err, name.Close())
	}
	return name, nil
}

// watcher is the holder's handle of the watcher process.
type watcher struct {
	line   *net.UnixConn // its end tells the watcher that the holder is gone
	name   *os.File      // open in both processes
	exited chan struct{}
	failed error // once exited
}

// startWatcher starts a watcher and returns when it runs. The watcher then owns name.
// After an error, the caller still owns it.
func startWatcher(name *os.File) (*watcher, error) {
	cmd := child.Command([]string{"/proc/self/exe", RoleWatcher}, "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{name} // nameFD
	line, err := child.Start(cmd, unix.SOCK_STREAM, cmd.Start)
	if err != nil {
		return nil, fmt.Errorf("start a watcher: %w", err)
	}
	w := &watcher{line: line, name: name, exited: make(chan struct{})}
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
	return errors.Join(err, w.failed, w.name.Close())
}

// Watch is the main function of a watcher, in the process that a hold started:
// it waits until the holder is gone and removes its plug. It returns the exit
// code.
func Watch() int {
	standby.Settle(nameFD, nil)
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
