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
	"sync"
	"time"

	"holdfast"
)

// Options say what to protect, while which command runs.
type Options struct {
	Spec
	// Netns is the path of the network namespace of the ports; "" is ours.
	Netns string
	// Published, where it is not nil, is the server that the ports are
	// passed on to: nothing listens on them here.
	Published *Published
	// Drain is how long the command waits, at most, for the old server's
	// running requests, with Overlap for those that it has not accepted; 0 is
	// not at all.
	Drain time.Duration
	// Wait is how long to wait for another protect of one of the ports.
	Wait time.Duration
	// Command is what restarts the server.
	Command        []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Keeper is the command of a keeper, see KeeperOptions.
	Keeper []string
	// LockDir is where locks are; it is made.
	LockDir string
	Log     *slog.Logger
	// Observe, where it is not nil, is called after each step, by its name.
	Observe func(step string)
}

// Report is how it went.
type Report struct {
	Backend Name `json:"backend"`
	// Installed is whether a standing keeper held (Install).
	Installed bool      `json:"installed,omitempty"`
	Refused   []Refusal `json:"refused,omitempty"`
	Steps     []Step    `json:"steps"`
	Drained   Drained   `json:"drained"`
	Released  Released  `json:"released"`
	// ExitCode is the command's, 128 + n where signal n ended it.
	ExitCode int `json:"exit_code"`
}

// Step is how long a part of it took.
type Step struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took_ns"`
}

// Ports are those of the addresses, each once, in order.
func (s Spec) Ports() []uint16 { return Ports(s.Addresses) }

// Ports are those of the addresses, each once, in order.
func Ports(as []Address) []uint16 {
	set := make(map[uint16]bool)
	for _, a := range as {
		set[a.Port] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// Run holds new connections, runs the command, and lets them through when the
// new server listens. The error says what is wrong with the protection, not with
// the command: that is in the report's exit code. Where the command was not
// started, or nothing could be held, Report.Backend is "".
//
// When ctx ends, the command gets a SIGTERM, and all is let go when it is gone.
func Run(ctx context.Context, o Options) (Report, error) {
	var r Report
	path, err := exec.LookPath(o.Command[0])
	if err != nil {
		return r, commandError(o.Command[0], err)
	}
	if err := needsRoot(); err != nil {
		return r, err
	}
	var old instance
	if o.Published != nil {
		o.Forwarded = true
		if old, err = o.Published.instance(ctx); err != nil {
			return r, err
		} else if old.pid == 0 {
			return r, holdfast.WithHint(errNotRunning, "`docker ps -a` shows what became of it")
		}
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
	defer func() { k.Close() }() // which may be another one by then
	for _, l := range locks {
		if l.left == nil {
			continue
		}
		if err := k.Tidy(ctx, *l.left); err != nil {
			o.Log.Warn("protect: " + err.Error())
			continue // the next one will try again
		}
		l.left = nil
	}
	step("prepare")
	// A keeper that hangs, or was stopped, would hold for ever.
	hung := time.AfterFunc(o.Limit+closeLimit, k.kill)
	defer func() { hung.Stop() }()
	began, err := k.Hold(ctx, o.Spec)
	if k.standing && (errors.Is(err, errLeaving) || errors.Is(err, ErrKeeperGone)) {
		hung.Stop()
		k.Close()
		if k, err = StartKeeper(o.keeperOptions(locks)); err != nil {
			return r, err
		}
		hung = time.AfterFunc(o.Limit+closeLimit, k.kill)
		began, err = k.Hold(ctx, o.Spec)
	}
	if err != nil {
		return r, explain(err, o.Spec)
	}
	r.Installed = k.standing
	if err := noteAll(locks, began.Leaves); err != nil {
		return r, fmt.Errorf("write down what is held: %w", err)
	}
	r.Backend, r.Refused = began.Backend, began.Refused
	step("hold")
	err = o.runHeld(ctx, &r, k, path, old, step)
	left := r.Released.Error != ""
	if errors.Is(err, ErrKeeperGone) && began.Leaves != nil {
		e := o.tidyAfter(*began.Leaves, locks)
		left, err = e != nil, errors.Join(err, e)
	}
	if left && began.Leaves != nil {
		keepAll(locks, began.Leaves)
	}
	return r, err
}

func (o Options) keeperOptions(locks []*Lock) KeeperOptions {
	return KeeperOptions{Argv: o.Keeper, Netns: o.Netns, Locks: locks, Log: o.Log}
}

// keeper is the standing one where the ports are installed, else a new one.
func (o Options) keeper(ctx context.Context, locks []*Lock) (*Keeper, error) {
	if len(locks) <= maxRights {
		k, err := Dial(ctx, o.LockDir, o.Netns, o.Log)
		if err == nil && covered(k.installed, o.Addresses) {
			k.locks = locks
			return k, nil
		}
		if err == nil {
			k.Close()
		} else if !errors.Is(err, ErrNoneStands) {
			o.Log.Warn("protect: go on without the standing keeper", "err", err)
		}
	}
	return StartKeeper(o.keeperOptions(locks))
}

// Prepared reports whether a standing keeper would hold for o, and by which
// backend.
func (o Options) Prepared(ctx context.Context) (Name, bool) {
	k, err := Dial(ctx, o.LockDir, o.Netns, o.Log)
	if err != nil {
		return o.Backend, false
	}
	defer k.Close()
	if !covered(k.installed, o.Addresses) {
		return o.Backend, false
	}
	if o.Backend == "" || o.Backend == Auto {
		return preferred(k.installed, o.Addresses), true
	}
	return o.Backend, true
}

// ErrNotRoot means that this process may not do it.
var ErrNotRoot = errors.New("holding connections needs root")

func needsRoot() error {
	if os.Geteuid() != 0 {
		return holdfast.WithHint(ErrNotRoot, "run it with sudo")
	}
	return nil
}

// tidyAfter tidies up when the keeper was killed, by another.
func (o Options) tidyAfter(left Left, locks []*Lock) error {
	k, err := StartKeeper(o.keeperOptions(locks))
	if err != nil {
		return err
	}
	defer k.Close()
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	return k.Tidy(ctx, left)
}

// runHeld is what happens while the hold stands.
func (o Options) runHeld(ctx context.Context, r *Report, k *Keeper, path string, old instance, step func(string)) (err error) {
	if o.Drain > 0 {
		drain := k.Drain
		if o.Published != nil {
			drain = func(ctx context.Context, limit time.Duration) (Drained, error) {
				return o.Published.drain(ctx, limit, o.Overlap)
			}
		}
		if r.Drained, err = drain(ctx, o.Drain); err != nil {
			return err
		}
		step("drain")
	}
	cmd := o.command(ctx, path)
	if err := cmd.Start(); err != nil {
		return commandError(o.Command[0], err)
	}
	step("start")
	exited := make(chan struct{})
	if o.Published != nil {
		ctx, cancel := context.WithCancel(ctx)
		var waiting sync.WaitGroup
		defer waiting.Wait()
		defer cancel()
		waiting.Go(func() {
			if o.Published.await(ctx, old, exited) == nil {
				_ = k.Release() // if the keeper is gone, there is nothing to release
			}
		})
	}
	return finish(ctx, r, k, cmd, func(name string) {
		step(name)
		if name == "command" {
			close(exited)
		}
	})
}

// finish waits for the command's end and the hold's, in any order.
func finish(ctx context.Context, r *Report, k *Keeper, cmd *exec.Cmd, step func(string)) error {
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	released, open := (<-chan Released)(k.Released()), true
	var keeperErr error
	for ended != nil || open {
		select {
		case err := <-ended:
			ended = nil
			step("command")
			killed := false
			if r.ExitCode, killed, err = exitOf(cmd, err); err != nil {
				return err
			}
			if open { // if the keeper is gone, that shows below
				_ = k.Exited(killed || ctx.Err() != nil)
			}
		case rel, ok := <-released:
			open, released = false, nil
			if !ok {
				keeperErr = ErrKeeperGone
				continue
			}
			r.Released = rel
			step("release")
		}
	}
	return errors.Join(keeperErr, r.Released.err())
}

// err is what a person has to know about a hold's end.
func (r Released) err() error {
	switch {
	case r.Reason == TimeUp && !r.Listening:
		return holdfast.WithHint(errors.New("the time is up and no server has come back: the connections that waited were let go, and are refused"),
			"see what became of the server; --timeout is how long to wait for it")
	case r.Error != "":
		return fmt.Errorf("let the connections go: %s", r.Error)
	}
	return nil
}

// explain adds what to do.
func explain(err error, s Spec) error {
	switch {
	case errors.Is(err, ErrNothingListens):
		return holdfast.WithHint(fmt.Errorf("protect port %s: %w", joinAddresses(s.Addresses), err),
			"`ss -ltnp` shows what listens; start the server first, or name it with --pid, --unit or --container")
	case errors.Is(err, ErrNoBackend):
		return holdfast.WithHint(fmt.Errorf("protect port %s: %w", joinAddresses(s.Addresses), err),
			"`holdfast protect --check` with the same port says what each way needs")
	}
	return fmt.Errorf("protect port %s: %w", joinAddresses(s.Addresses), err)
}

func joinAddresses(as []Address) string {
	s := ""
	for i, a := range as {
		if i > 0 {
			s += ", "
		}
		s += a.String()
	}
	return s
}

// stopwatch notes steps one after the other.
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
