package guardian

import (
	"errors"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/vethnet"
)

// How often a net is looked at, at first and later: until the kernel has taken down what
// has just ended, and then until the last container has.
const (
	leaveSoon  = 50 * time.Millisecond
	leaveLater = time.Second
	soon       = 2 * time.Second
)

// lasts reports whether it is a plan that outlasts its starter.
func (p *held) lasts() bool { return len(p.parts) > 0 && p.parts[0].kind == Leave }

// linger carries out what takes its time, once the starter is gone and all else is done.
// A SIGTERM ends it: nothing of that outlives the host.
func (s *server) linger() {
	nets := map[string]vethnet.Config{} // by what tells one from another
	for _, p := range s.plans {
		for _, pt := range p.parts {
			for _, c := range pt.nets {
				if p.armed {
					nets[c.Bridge+" "+c.Table] = c
				}
			}
		}
	}
	if len(nets) == 0 {
		return
	}
	s.log.Info("guardian: bridges of containers, and their way out of this host, go with the last container, unless another agent comes", "bridges", len(nets))
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM)
	letGo()
	pause := leaveSoon
	for begun := time.Now(); ; {
		for key, c := range nets {
			if over, _ := leave(c); over { // else tried again: there is nobody to tell
				delete(nets, key)
			}
		}
		if len(nets) == 0 {
			return
		}
		if time.Since(begun) > soon {
			pause = leaveLater
		}
		select {
		case <-time.After(pause):
		case <-term:
			return
		}
	}
}

// letGo of what the starter gave: who waits for the end of its output waits for no
// guardian.
func letGo() {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		for _, fd := range []int{1, 2} {
			err = errors.Join(err, unix.Dup3(null, fd, 0))
		}
		err = errors.Join(err, unix.Close(null))
	}
	if err != nil {
		unix.Close(1)
		unix.Close(2)
	}
	unix.Close(socketFD)
}

// leave takes a net away, if it may. over is that there is nothing more to be done.
func leave(c vethnet.Config) (over bool, err error) {
	n, err := vethnet.New(c)
	if err != nil {
		return true, err // nor later
	}
	kept, err := n.RemoveAbandoned()
	return kept || err == nil, err
}
