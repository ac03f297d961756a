package guardian

import (
	"errors"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/vethnet"
)

// The pause between two looks at a net. The short one covers the time in which the
// kernel removes the namespaces of containers that have just ended; the long one
// waits for the last container.
const (
	leaveSoon  = 50 * time.Millisecond
	leaveLater = time.Second
	soon       = 2 * time.Second
	// takeOver is how long a net that a process maintains is looked at again: the process
	// may be the starter, which removes its last containers and then exits.
	takeOver = 10 * time.Second
)

// lasts reports whether the plan is carried out after its starter is gone.
func (p *held) lasts() bool { return len(p.parts) > 0 && p.parts[0].kind == Leave }

// runLeavePlans carries out the plans of kind Leave, once the starter is gone and all other
// plans are done. SIGTERM ends it: when the host shuts down, bridges and rules go
// with it.
func (s *server) runLeavePlans() {
	nets := map[string]vethnet.Config{} // by bridge and table
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
	s.log.Info("guardian: removing container bridges and their NAT rules after the last container, unless another agent takes them over", "bridges", len(nets))
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM)
	detach()
	pause := leaveSoon
	for begun := time.Now(); ; {
		for key, c := range nets {
			// After an error it is tried again; no starter is left to report to.
			if over, _ := leave(c, time.Since(begun) > takeOver); over {
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

// detach closes the starter's standard output and error, and the socket. A process
// that reads the agent's output until EOF then does not wait for the guardian.
func detach() {
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

// leave removes a net that no agent uses any more. over reports that nothing is left to do:
// with late also because a process maintains the net.
func leave(c vethnet.Config, late bool) (over bool, err error) {
	n, err := vethnet.New(c)
	if err != nil {
		return true, err // a later attempt would fail too
	}
	kept, err := n.RemoveAbandoned()
	if kept {
		return late, nil
	}
	return err == nil, err
}

// thaws reports whether the plan is of kind Thaw.
func (p *held) thaws() bool { return len(p.parts) > 0 && p.parts[0].kind == Thaw }
