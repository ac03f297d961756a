package protect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/hosts/protect/keep"
	"holdfast/internal/hosts/protect/ready"
)

// Options say which addresses to protect, and which command runs meanwhile.
type Options struct {
	Spec
	// Netns is the path of the network namespace of the ports; "" is the current
	// one.
	Netns string
	// Published, if not nil, is the server to which the ports are forwarded;
	// nothing listens on them in this namespace.
	Published *Published
	// Drain is the longest wait before the command starts for the running
	// requests of the old server; with Overlap, for the connections that it has
	// not accepted. 0 means no wait.
	Drain time.Duration
	// Keep says whose idle connections of the old server go on to the new one, and KeepFor
	// for how long at least. Published must be nil then.
	Keep    keep.Clients
	KeepFor time.Duration
	// Wait is how long to wait for another protect of one of the ports.
	Wait time.Duration
	// Command restarts the server.
	Command []string
	// Job, if not nil, restarts it in place of Command. Published must be nil.
	Job            Job
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Keeper is the command of a keeper, see KeeperOptions.
	Keeper []string
	// LockDir is the directory of the locks, which Run creates.
	LockDir string
	Log     *slog.Logger
	// Observe receives the name of each step when that has ended; it may be nil.
	Observe func(step string)
}

// Report is the result of a protect.
type Report struct {
	Backend Name `json:"backend"`
	// Installed reports whether a standing keeper held the connections (Install).
	Installed bool      `json:"installed,omitempty"`
	Refused   []Refusal `json:"refused,omitempty"`
	Steps     []Step    `json:"steps"`
	Drained   Drained   `json:"drained"`
	Released  Released  `json:"released"`
	// Kept is what became of the old server's connections; nil: they were not to be kept.
	Kept *keep.Report `json:"kept,omitempty"`
	// ExitCode is that of the command, 128 + n if signal n ended it.
	ExitCode int `json:"exit_code"`
}

// Step is the duration of one part of a protect.
type Step struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took_ns"`
}

// Ports returns the ports of the addresses in ascending order, each once.
func (s Spec) Ports() []uint16 { return Ports(s.Addresses) }

// Ports returns the ports of the addresses in ascending order, each once.
func Ports(as []Address) []uint16 {
	set := make(map[uint16]bool)
	for _, a := range as {
		set[a.Port] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// Run holds new connections, runs the command, and lets the connections through
// when the new server listens. The error concerns the protection; the exit code
// of the command is in the report. If the command was not started, or nothing
// could be held, Report.Backend is "".
//
// When ctx ends, the command gets a SIGTERM. All connections are let through
// when the command has ended.
func Run(ctx context.Context, o Options) (Report, error) {
	var r Report
	path, err := "", error(nil)
	if o.Job == nil {
		if path, err = exec.LookPath(o.Command[0]); err != nil {
			return r, commandError(o.Command[0], err)
		}
	}
	o.Gate = o.Job != nil
	if err := NeedsRoot(); err != nil {
		return r, err
	}
	if o.Netns != "" { // the process that it names may end before this one has the lock
		f, err := os.Open(o.Netns)
		if err != nil {
			return r, fmt.Errorf("open the network namespace of the server: %w", err)
		}
		defer f.Close()
		o.Netns = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())
	}
	var old instance
	if o.Published != nil {
		o.Forwarded = true
		if old, err = o.Published.instance(ctx); err != nil {
			return r, err
		} else if old.pid == 0 {
			return r, holdfast.WithHint(errNotRunning, "`docker ps -a` shows its state")
		}
	}
	var programs *programs
	if o.Ready.Kind == ready.Exec {
		if programs, err = newPrograms(o.Ready.Argv, o.Netns); err != nil {
			return r, err
		}
		defer programs.close()
	}
	step := o.stopwatch(&r)
	lockCtx, cancel := context.WithTimeout(ctx, o.Wait)
	locks, err := LockPorts(lockCtx, o.LockDir, o.Netns, o.Ports())
	cancel()
	if err != nil {
		return r, err
	}
	defer Unlock(locks)
	k, err := o.keeper(ctx, locks)
	if err != nil {
		return r, err
	}
	defer func() { k.Close() }() // k may have been replaced
	k.programs = programs
	var a *asker // of a server in a container; the keeper asks others
	if o.Published != nil {
		if a, err = o.Published.asker(ctx, o.Ready, o.Ports(), old, programs); err != nil {
			return r, err
		}
		defer a.end()
	}
	for _, l := range locks {
		if l.left == nil {
			continue
		}
		if err := k.Tidy(ctx, *l.left); err != nil {
			o.Log.Warn("protect: " + err.Error())
			continue // the next protect tries again
		}
		l.left = nil
	}
	step("prepare")
	kept := o.watch(ctx, &r, step)
	defer kept.close()
	began, err := k.Hold(ctx, o.Spec)
	if k.standing && (errors.Is(err, errLeaving) || errors.Is(err, ErrKeeperGone)) {
		k.Close()
		o.Log.Warn("protect: continuing without the standing keeper", "err", err)
		if k, err = StartKeeper(o.keeperOptions(locks)); err != nil {
			return r, err
		}
		k.programs = programs
		began, err = k.Hold(ctx, o.Spec)
	}
	if err != nil {
		return r, explain(err, o.Spec)
	}
	r.Installed = k.standing
	if err := noteAll(locks, began.Residue); err != nil {
		return r, fmt.Errorf("record what the hold leaves: %w", err)
	}
	r.Backend, r.Refused = began.Backend, began.Refused
	step("hold")
	err = o.runHeld(ctx, &r, k, path, old, a, kept, step)
	left := r.Released.Error != ""
	if errors.Is(err, ErrKeeperGone) && began.Residue != nil {
		e := o.tidyAfter(*began.Residue, locks)
		left, err = e != nil, errors.Join(err, e)
	}
	if left && began.Residue != nil {
		keepAll(locks, began.Residue)
	}
	return r, err
}

func (o Options) keeperOptions(locks []*Lock) KeeperOptions {
	return KeeperOptions{Argv: o.Keeper, Netns: o.Netns, Locks: locks, Log: o.Log}
}

// keeper returns the standing keeper if the ports are installed, else a new
// one.
func (o Options) keeper(ctx context.Context, locks []*Lock) (*Keeper, error) {
	if len(locks) <= maxRights {
		k, err := o.standing(ctx)
		if err == nil {
			k.locks = locks
			return k, nil
		}
		if !errors.Is(err, ErrNoneStands) {
			o.Log.Warn("protect: continuing without the standing keeper", "err", err)
		}
	}
	return StartKeeper(o.keeperOptions(locks))
}

// standing connects to the standing keeper. Error: ErrNoneStands, also if the
// addresses of o are not installed.
func (o Options) standing(ctx context.Context) (*Keeper, error) {
	k, err := Dial(ctx, o.LockDir, o.Netns, o.Log)
	if err == nil && !covered(k.installed, o.Addresses) {
		k.Close()
		return nil, ErrNoneStands
	}
	return k, err
}

// Prepared reports whether a standing keeper would hold for o, and with which
// backend.
func (o Options) Prepared(ctx context.Context) (Name, bool) {
	k, err := o.standing(ctx)
	if err != nil {
		return o.Backend, false
	}
	defer k.Close()
	if o.Backend == "" || o.Backend == Auto {
		return preferred(k.installed, o.Addresses), true
	}
	return o.Backend, true
}

// ErrNotRoot reports that the process lacks the privileges to hold connections.
var ErrNotRoot = errors.New("holding connections needs root")

// NeedsRoot returns ErrNotRoot, with a hint, unless the process runs as root.
func NeedsRoot() error {
	if os.Geteuid() != 0 {
		return holdfast.WithHint(ErrNotRoot, "run it with sudo")
	}
	return nil
}

// tidyAfter starts another keeper to tidy up after the first was killed.
func (o Options) tidyAfter(left Residue, locks []*Lock) error {
	k, err := StartKeeper(o.keeperOptions(locks))
	if err != nil {
		return err
	}
	defer k.Close()
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	return k.Tidy(ctx, left)
}

// runHeld drains, runs the command and waits for the release while the hold is
// in place.
func (o Options) runHeld(ctx context.Context, r *Report, k *Keeper, path string, old instance, a *asker, kept *kept, step func(string)) (err error) {
	kept.shut(ctx)
	if o.Drain > 0 {
		drain := func(ctx context.Context, limit time.Duration) (Drained, error) {
			return k.Drain(ctx, limit, kept.settles()...)
		}
		if o.Published != nil {
			drain = func(ctx context.Context, limit time.Duration) (Drained, error) {
				return o.Published.drain(ctx, limit, o.Overlap)
			}
		}
		if r.Drained, err = drain(ctx, o.Drain); err != nil {
			return err
		}
		kept.settle(ctx)
		step("drain")
	}
	if o.Job != nil {
		err = o.follow(ctx, r, k, kept, step)
		return errors.Join(err, r.Released.err())
	}
	cmd := o.command(ctx, path)
	if err := cmd.Start(); err != nil {
		return commandError(o.Command[0], err)
	}
	step("start")
	exited := make(chan struct{})
	settle := func() {}
	if o.Published != nil {
		ctx, cancel := context.WithCancel(ctx)
		var waiting sync.WaitGroup
		waiting.Go(func() {
			if o.Published.await(ctx, old, a, exited) == nil {
				_ = k.Release() // if the keeper is gone, there is nothing to release
			}
		})
		settle = func() {
			cancel()
			waiting.Wait()
			r.Released.Ready = a.end()
		}
	}
	err = finish(ctx, r, k, cmd, exited, kept, step)
	settle()
	return errors.Join(err, r.Released.err())
}

// finish waits for the end of the command and of the hold, in any order. It closes
// exited at the end of the command. Error: ErrKeeperGone, or the command's end is unknown.
func finish(ctx context.Context, r *Report, k *Keeper, cmd *exec.Cmd, exited chan<- struct{}, kept *kept, step func(string)) error {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	released := k.Released()
	var keeperErr error
	for ended != nil || released != nil {
		select {
		case err := <-ended:
			ended = nil
			step("command")
			close(exited)
			killed := false
			if r.ExitCode, killed, err = exitOf(cmd, err); err != nil {
				return err
			}
			if released != nil { // it reports below if the keeper is gone
				_ = k.Exited(killed || ctx.Err() != nil)
			}
		case rel, ok := <-released:
			released = nil
			if !ok {
				kept.close()
				keeperErr = ErrKeeperGone
				continue
			}
			r.Released = rel
			kept.relay()
			step("release")
		}
	}
	return keeperErr
}

// ErrNotReady reports that the new server listens, and was not ready when the hold ended.
var ErrNotReady = errors.New("the time is up and the new server is not ready: the waiting connections were let through")

// unready returns ErrNotReady if the server was asked and the hold ended before it was ready.
func (r Released) unready() error {
	if r.Reason != TimeUp || r.Ready == nil || r.Ready.Tries == 0 || r.Ready.Ready {
		return nil
	}
	return holdfast.WithHint(fmt.Errorf("%w; its last answer: %s", ErrNotReady, r.Ready.Last),
		"check the server; --timeout sets how long to wait for it, and --ready how it is asked")
}

// err returns the error for the operator that the end of a hold calls for.
func (r Released) err() error {
	if err := r.unready(); err != nil {
		return err
	}
	switch {
	case r.Reason == StaysDown:
		return holdfast.WithHint(errors.New("the server has failed and stays stopped: the waiting connections were let through and are refused"),
			"`systemctl status` of the unit says why it failed")
	case r.Reason == TimeUp && !r.Listening:
		return holdfast.WithHint(errors.New("the time is up and no server listens: the waiting connections were let through and are refused"),
			"check the server; --timeout sets how long to wait for it")
	case r.Error != "":
		return fmt.Errorf("release the connections: %s", r.Error)
	}
	return nil
}

// explain adds a hint to err.
func explain(err error, s Spec) error {
	var ports []string
	for _, a := range s.Addresses {
		ports = append(ports, a.String())
	}
	failed := fmt.Errorf("protect port %s: %w", strings.Join(ports, ", "), err)
	switch {
	case errors.Is(err, ErrNothingListens):
		return holdfast.WithHint(failed, "`ss -ltnp` shows what listens; start the server first, or name it with --pid, --unit or --container")
	case errors.Is(err, ErrNoBackend):
		return holdfast.WithHint(failed, "`holdfast protect --check` with the same port says what each backend needs")
	}
	return failed
}

// stopwatch records the durations of consecutive steps.
func (o Options) stopwatch(r *Report) func(string) {
	last := time.Now()
	return func(name string) {
		now := time.Now()
		r.Steps = append(r.Steps, Step{name, now.Sub(last)})
		last = now
		if o.Observe != nil {
			o.Observe(name)
		}
	}
}
