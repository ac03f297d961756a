// Package pidfd refers to processes by file descriptors (pidfd_open(2)). A signal
// sent through one reaches that process or none. The descriptor becomes readable when
// the process is dead.
package pidfd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/proc"
)

// Errors that callers decide by; they come wrapped.
var (
	ErrGone   = errors.New("no such process")
	ErrReused = errors.New("the pid belongs to another process now")
)

// Process is a handle on one process. Its methods may be called from any
// goroutine; after Close they fail with os.ErrClosed.
type Process struct {
	file  *os.File
	pid   int
	start uint64
}

// Open opens the process that has the pid now. ErrGone.
func Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case err == unix.ESRCH:
		return nil, fmt.Errorf("open process %d: %w", pid, ErrGone)
	case err != nil:
		return nil, fmt.Errorf("open process %d: pidfd_open: %w", pid, err)
	}
	p := &Process{file: os.NewFile(uintptr(fd), "pidfd:"+strconv.Itoa(pid)), pid: pid}
	// The start time is read after the pidfd is open: if the process still lives
	// then, the time is its own.
	s, err := proc.Host.Stat(pid)
	if err == nil && !p.Exited() {
		p.start = s.Start
		return p, nil
	}
	p.Close()
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = ErrGone
	}
	return nil, fmt.Errorf("open process %d: %w", pid, err)
}

// OpenStarted opens the process with the pid and the start time (proc.Stat.Start).
// ErrGone, ErrReused.
func OpenStarted(pid int, start uint64) (*Process, error) {
	p, err := Open(pid)
	if err != nil {
		return nil, err
	}
	if p.start != start {
		p.Close()
		return nil, fmt.Errorf("open process %d: %w (started at tick %d, not %d)", pid, ErrReused, p.start, start)
	}
	return p, nil
}

// Receive makes a handle from a pidfd and a start time that came from another
// process. The descriptor belongs to the handle; after an error it is closed.
func Receive(fd int, start uint64) (*Process, error) {
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "pidfd")
	info, err := kfile.Read("/proc/self/fdinfo/"+strconv.Itoa(fd), 4096)
	if err != nil {
		f.Close()
		return nil, err
	}
	pid, err := ParseFdinfo(string(info))
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Process{file: f, pid: pid, start: start}, nil
}

// ParseFdinfo finds the pid in the fdinfo of a pidfd: 0 for a process outside this
// pid namespace, -1 for one that has been reaped.
func ParseFdinfo(info string) (int, error) {
	field, ok := proc.Field([]byte(info), "Pid")
	if !ok {
		return 0, errors.New("fdinfo: the descriptor is not a pidfd")
	}
	pid, err := strconv.Atoi(field)
	if err != nil {
		return 0, fmt.Errorf("fdinfo of a pidfd: %w", err)
	}
	return pid, nil
}

// Pid is the process's pid in this pid namespace, also after its death.
func (p *Process) Pid() int { return p.pid }

// Start is when the process started, in ticks after boot (proc.Stat.Start).
func (p *Process) Start() uint64 { return p.start }

// Signal sends a signal. A process that is reaped is ErrGone; one that is dead
// and not yet reaped takes any signal without effect, kill(2).
func (p *Process) Signal(sig unix.Signal) error {
	var err error
	if e := p.Control(func(fd int) { err = unix.PidfdSendSignal(fd, sig, nil, 0) }); e != nil {
		return e
	}
	switch {
	case err == unix.ESRCH:
		return fmt.Errorf("signal process %d: %w", p.pid, ErrGone)
	case err != nil:
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	return nil
}

// Exited reports whether the process is dead: a zombie with no thread left, or
// reaped. For a closed handle it returns false.
func (p *Process) Exited() bool {
	n := 0
	_ = p.Control(func(fd int) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			var err error
			if n, err = unix.Poll(fds, 0); err != unix.EINTR {
				return
			}
		}
	})
	return n > 0
}

// Control runs f with the descriptor, which stays open for that long.
func (p *Process) Control(f func(fd int)) error {
	raw, err := p.file.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
	if err != nil { // the only error: package os has its own one for a closed file
		return fmt.Errorf("process %d: %w (%w)", p.pid, os.ErrClosed, err)
	}
	return nil
}

// Dup returns another handle on the same process, which is closed separately.
func (p *Process) Dup() (*Process, error) {
	var fd int
	var err error
	if e := p.Control(func(own int) { fd, err = unix.FcntlInt(uintptr(own), unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, fmt.Errorf("another handle on process %d: %w", p.pid, err)
	}
	return &Process{file: os.NewFile(uintptr(fd), p.file.Name()), pid: p.pid, start: p.start}, nil
}

// Close closes the handle. It may be called more than once.
func (p *Process) Close() { _ = p.file.Close() }
