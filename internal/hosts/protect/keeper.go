package protect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/child"
	"holdfast/internal/platform/linux/netns"
)

// ErrKeeperGone reports that the keeper has died: the connections that it held
// were released.
var ErrKeeperGone = errors.New("the process that held the connections is gone")

// KeeperOptions say how a keeper is started.
type KeeperOptions struct {
	// Argv is a command that calls Main with the arguments that are appended to
	// it: usually the program's own executable and a role.
	Argv []string
	// Netns is the path of the network namespace to work in; "" is the current
	// one.
	Netns string
	// Locks stay locked until the keeper has ended too.
	Locks []*Lock
	Log   *slog.Logger
}

// Keeper is the starter's handle of a process that holds connections and
// releases them at once when its starter is gone. It does one hold at a time.
// Its methods may be called from any goroutine.
type Keeper struct {
	conn      *child.Conn[answer]
	process   *os.Process // nil for a standing one in another pid namespace
	standing  bool        // it survives this process
	installed []Installed // what a standing one is prepared for
	locks     []*Lock     // a standing one gets them with the hold
	programs  *programs   // nil: the check is no program
	log       *slog.Logger

	asking   sync.Mutex // held through each question and its answer
	released chan Released
	lingers  bool        // it outlives this process, for known flows of UDP
	hung     *time.Timer // kills a keeper that does not end its hold
}

// StartKeeper starts a keeper. The keeper survives a SIGINT, SIGTERM or SIGHUP
// to its starter's session. It ends with its starter, or on Close.
func StartKeeper(o KeeperOptions) (*Keeper, error) {
	cmd := child.Command(append(o.Argv[:len(o.Argv):len(o.Argv)], strconv.Itoa(len(o.Locks))), keeperEnv()...)
	cmd.Stderr = os.Stderr
	for _, l := range o.Locks {
		cmd.ExtraFiles = append(cmd.ExtraFiles, l.file)
	}
	conn, err := child.Start(cmd, unix.SOCK_SEQPACKET, func() error { return netns.Do(o.Netns, cmd.Start) })
	if err != nil {
		return nil, fmt.Errorf("start the process that holds: %w", err)
	}
	k := &Keeper{process: cmd.Process, log: o.Log}
	k.begin(conn)
	return k, nil
}

// begin reads from the keeper until it is gone and, if it is this process's child,
// reaped.
func (k *Keeper) begin(conn *net.UnixConn) {
	k.released = make(chan Released, 1)
	k.hung = time.AfterFunc(math.MaxInt64, k.kill)
	k.hung.Stop() // until a hold begins
	k.conn = child.Talk(conn, maxMessage, child.Handlers[answer]{
		Divert: func(a answer) (reply, more bool) {
			switch a.Op {
			case opRun:
				k.run(a.Run)
				return false, true
			case opReleased:
				k.hung.Stop()
				k.lingers = a.Released.Datagrams != nil && a.Released.Datagrams.Stays
			default:
				return true, true
			}
			select {
			case k.released <- a.Released:
			default: // the caller does not want to know how the last one ended
			}
			return false, true
		},
		End: func() {
			k.hung.Stop()
			close(k.released)
			conn.Close()
			switch {
			case k.standing:
			case k.lingers:
				_ = k.process.Release()
			default:
				_, _ = k.process.Wait() // it has closed its socket: it ends, or is dead
			}
		},
	})
}

// run runs the program of the check, and tells the keeper how it ended.
func (k *Keeper) run(r run) {
	if k.programs == nil {
		return
	}
	k.programs.running.Go(func() {
		how := ran{Number: r.Number}
		if err := k.programs.run(k.programs.ctx, r.At); err != nil {
			how.Error = err.Error()
		}
		_ = k.send(request{Op: opRan, Ran: how}) // a keeper that is gone needs no answer
	})
}

// maxPIDs limits the processes that are named to a keeper. They only shorten a
// search.
const maxPIDs = 1000

func (s Spec) bounded() Spec {
	s.PIDs = s.PIDs[:min(len(s.PIDs), maxPIDs)]
	return s
}

// ask sends a request and waits for its answer.
func (k *Keeper) ask(ctx context.Context, r request) (answer, error) {
	k.asking.Lock()
	defer k.asking.Unlock()
	if err := k.send(r); err != nil {
		return answer{}, err
	}
	a, err := k.conn.Await(ctx, func(a answer) bool { return a.Op == r.Op })
	if errors.Is(err, child.ErrGone) {
		err = ErrKeeperGone
	}
	if err != nil {
		return a, err
	}
	return a, a.err()
}

// sendLimit is how long the keeper may leave a message unread.
const sendLimit = 5 * time.Second

func (k *Keeper) send(r request) error {
	var rights []byte
	if r.Op == opHold && len(k.locks) > 0 {
		rights = lockRights(k.locks)
	}
	err := k.conn.Send(r, rights, sendLimit)
	if errors.Is(err, net.ErrClosed) {
		return ErrKeeperGone
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrKeeperGone, err)
	}
	return nil
}

// lockRights is a message with the files of locks (SCM_RIGHTS, unix(7)).
func lockRights(locks []*Lock) []byte {
	var fds []int
	for _, l := range locks {
		fds = append(fds, int(l.file.Fd()))
	}
	return unix.UnixRights(fds...)
}

// Probe reports for every backend whether it would work; Why is "" if it would.
// Error: ErrNothingListens.
func (k *Keeper) Probe(ctx context.Context, s Spec) ([]Refusal, error) {
	a, err := k.ask(ctx, request{Op: opProbe, Spec: s.bounded()})
	if err != nil {
		return nil, fmt.Errorf("probe the backends: %w", err)
	}
	return a.Probes, nil
}

// Hold begins a hold. A keeper that has not released it some time after the limit hangs, or was
// stopped, and is killed. Errors: ErrNothingListens, ErrNoBackend, ErrKeeperGone.
func (k *Keeper) Hold(ctx context.Context, s Spec) (Began, error) {
	if s.Limit <= 0 {
		return Began{}, errors.New("a hold needs a limit")
	}
	k.hung.Reset(s.Limit + closeLimit)
	a, err := k.ask(ctx, request{Op: opHold, Spec: s.bounded()})
	if err != nil {
		k.hung.Stop()
	}
	return a.Began, err
}

// Tidy undoes the residue of a killed keeper. Nothing may be held.
func (k *Keeper) Tidy(ctx context.Context, l Residue) error {
	if _, err := k.ask(ctx, request{Op: opTidy, Left: l}); err != nil {
		return fmt.Errorf("tidy up after an earlier hold: %w", err)
	}
	return nil
}

// Drain waits, during a hold, until the old server has no request left, or
// until the limit. With Spec.Overlap it waits only for connections that the
// server has not accepted; so it does on the ports in settled. Error: ErrKeeperGone.
func (k *Keeper) Drain(ctx context.Context, limit time.Duration, settled ...uint16) (Drained, error) {
	a, err := k.ask(ctx, request{Op: opDrain, Limit: limit, Settled: settled})
	if err != nil {
		return Drained{}, fmt.Errorf("wait for requests to be answered: %w", err)
	}
	return a.Drained, nil
}

// Exited reports that the command that restarts the server has ended. If killed
// is true, a signal ended it, and the keeper releases all connections.
func (k *Keeper) Exited(killed bool) error { return k.send(request{Op: opExited, Killed: killed}) }

// Release ends the hold now. Released delivers its end.
func (k *Keeper) Release() error { return k.send(request{Op: opRelease}) }

// Released delivers the end of each hold, and is closed when the keeper is
// gone.
func (k *Keeper) Released() <-chan Released { return k.released }

// Pid returns the keeper's pid; 0 if it is in another pid namespace.
func (k *Keeper) Pid() int {
	if k.process == nil {
		return 0
	}
	return k.process.Pid
}

// kill ends a keeper that hangs, or disconnects from it if that is not
// possible.
func (k *Keeper) kill() {
	if k.process != nil {
		_ = k.process.Kill() // it may have ended
	}
	_ = k.conn.Close()
}

// closeLimit is how long a keeper may take to release what it holds.
const closeLimit = releaseLimit + 5*time.Second

// Close ends the keeper and waits for its end. For a standing keeper it only
// closes the connection. What the keeper holds for this process is released at
// once. A nil Keeper needs no Close.
func (k *Keeper) Close() {
	if k == nil {
		return
	}
	_ = k.conn.CloseWrite()
	select {
	case <-k.conn.Ended():
	case <-time.After(closeLimit): // it hangs
		k.kill()
		<-k.conn.Ended()
	}
}

// keeperEnv is the whole environment of a keeper.
func keeperEnv() []string { return []string{"GOMAXPROCS=2", "GODEBUG=madvdontneed=1"} }
