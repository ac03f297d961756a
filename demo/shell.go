package main

import (
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// hangupGrace is the time in which a shell must end after its terminal was closed.
const hangupGrace = time.Second

// maxSide bounds a terminal's rows and columns.
const maxSide = 1000

// size is a terminal's size in characters.
type size struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

// winsize clamps s to 1…maxSide.
func (s size) winsize() *pty.Winsize {
	return &pty.Winsize{
		Rows: uint16(min(max(s.Rows, 1), maxSide)),
		Cols: uint16(min(max(s.Cols, 1), maxSide)),
	}
}

// shell is a /bin/sh with its own pseudoterminal.
type shell struct {
	tty    *os.File // the server's side of the pseudoterminal
	pid    int
	gone   <-chan struct{} // closed when it is dead and reaped
	reaper *reaper
	unsent []byte // output that was read from tty and not sent to a browser
}

func startShell(r *reaper, session string, s size) (*shell, error) {
	cmd := exec.Command("/bin/sh")
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "PS1="+session+`:\w$ `)
	if home, err := os.UserHomeDir(); err == nil {
		cmd.Dir = home
	}
	sh := &shell{reaper: r}
	var err error
	sh.pid, sh.gone, err = r.start(func() (*os.Process, error) {
		// The shell leads a new session: the kernel sends it SIGHUP when tty is closed.
		tty, err := pty.StartWithSize(cmd, s.winsize())
		sh.tty = tty
		return cmd.Process, err
	})
	if err != nil {
		return nil, fmt.Errorf("start a shell: %w", err)
	}
	if sh.tty, err = polled(sh.tty); err != nil {
		sh.end()
		return nil, fmt.Errorf("set the terminal up: %w", err)
	}
	return sh, nil
}

// polled replaces f by the same file in the runtime's poller. Package pty leaves f in
// blocking mode, in which Close waits for a pending Read, so that the hangup would never
// happen. With an error it returns f unchanged.
func polled(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return f, fmt.Errorf("dup: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return f, fmt.Errorf("set non-blocking: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), f.Close()
}

// resize sets the size of the terminal. The kernel sends SIGWINCH to its foreground
// processes.
func (sh *shell) resize(s size) error {
	conn, err := sh.tty.SyscallConn() // Fd would set blocking mode again
	if err != nil {
		return fmt.Errorf("resize the terminal: %w", err)
	}
	w := s.winsize()
	var failed error
	if err := conn.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: w.Rows, Col: w.Cols})
	}); err != nil {
		return fmt.Errorf("resize the terminal: %w", err)
	}
	if failed != nil {
		return fmt.Errorf("resize the terminal: %w", failed)
	}
	return nil
}

// end hangs up the terminal, and returns when the shell is reaped. Programs that were
// started with nohup keep running.
func (sh *shell) end() {
	_ = sh.tty.Close() // a second close has no effect
	select {
	case <-sh.gone:
		return
	case <-time.After(hangupGrace):
	}
	sh.reaper.kill(sh.pid)
	<-sh.gone
}
