// Package install keeps a keeper of package protect standing by for ports that are
// protected often, so that a hold of theirs begins in a fraction of the time. What
// is installed is a process and a line in a file: nothing of it is in the way of
// packets (docs/adr/prepared-protection.md).
package install

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"time"

	"holdfast"
	"holdfast/internal/hosts/protect"
)

// Options say where. The namespace is always this process's own.
type Options struct {
	// Keeper is the command of a keeper, see protect.KeeperOptions.
	Keeper []string
	// LockDir is protect's: standing keepers have their sockets there.
	LockDir string
	// Record is the file by which Restore knows what was installed; "" is none,
	// and then it is until the next boot.
	Record string
	Log    *slog.Logger
	// Observe, where it is not nil, is called after each step, by its name.
	Observe func(step string)
}

// Port is one of the installed.
type Port struct {
	protect.Prepared
	// Standing is whether a keeper is prepared for it.
	Standing bool `json:"standing"`
	// Recorded is whether Restore brings it back.
	Recorded bool `json:"recorded"`
	// Works is the backend that would hold it now; "" if it was not checked, or
	// nothing listens.
	Works protect.Name `json:"works,omitempty"`
}

// State is all that is installed.
type State struct {
	// Keeper is the standing one; nil where there is none.
	Keeper *Keeper `json:"keeper,omitempty"`
	Ports  []Port  `json:"ports"`
}

// Keeper is a process that stands by.
type Keeper struct {
	Pid   int       `json:"pid"`
	Since time.Time `json:"since"`
	// Outdated says that it runs another program than this one.
	Outdated bool `json:"outdated,omitempty"`
}

// Add installs ports beside those that are, or changes their backend. Where
// nothing listens yet, that is no error. ErrNoBackend, *RefusedError.
func Add(ctx context.Context, o Options, ports []protect.Installed) (State, error) {
	works, err := o.try(ctx, ports)
	if err != nil {
		return State{}, err
	}
	s, err := o.change(ctx, func(now []protect.Installed) ([]protect.Installed, error) {
		next := slices.Clone(now)
		for _, p := range ports {
			if i := at(next, p.Address); i >= 0 {
				next[i] = p
			} else {
				next = append(next, p)
			}
		}
		return next, check(next)
	})
	for i := range s.Ports {
		if at(ports, s.Ports[i].Address) >= 0 {
			s.Ports[i].Works = works
		}
	}
	return s, err
}

func at(ports []protect.Installed, a protect.Address) int {
	return slices.IndexFunc(ports, func(p protect.Installed) bool { return p.Address == a })
}

// Restore brings a standing keeper back for what is recorded, as after a boot, and
// replaces one that runs another program.
func Restore(ctx context.Context, o Options) (State, error) {
	return o.change(ctx, func(now []protect.Installed) ([]protect.Installed, error) { return now, nil })
}

// Remove takes these addresses out, or without any all, and leaves nothing behind
// when none is left. It waits for the end of a hold. What is not installed is no
// error: the state is what is left.
func Remove(ctx context.Context, o Options, as []protect.Address) (State, error) {
	if len(as) == 0 {
		return o.change(ctx, nil)
	}
	return o.change(ctx, func(now []protect.Installed) ([]protect.Installed, error) {
		return slices.DeleteFunc(slices.Clone(now), func(p protect.Installed) bool { return slices.Contains(as, p.Address) }), nil
	})
}

// change makes what is installed what next says, with nil nothing, whatever there
// is. Killed at any step, it leaves the
// keeper or the record behind the other, which the next change repairs; neither
// holds connections.
func (o Options) change(ctx context.Context, next func([]protect.Installed) ([]protect.Installed, error)) (State, error) {
	if os.Geteuid() != 0 {
		return State{}, holdfast.WithHint(protect.ErrNotRoot, "run it with sudo")
	}
	locks, err := protect.LockInstall(ctx, o.LockDir, "")
	if err != nil {
		return State{}, err
	}
	defer protect.Unlock(locks)
	o.step("lock")
	k, err := o.dial(ctx)
	if err != nil {
		return State{}, err
	}
	defer func() { closeIf(k) }()
	var ports []protect.Installed
	if next != nil {
		now, err := o.installed(k)
		if err != nil {
			return State{}, err
		}
		if ports, err = next(now); err != nil {
			return State{}, err
		}
	}
	if k, err = o.stand(ctx, k, ports); err != nil {
		return State{}, err
	}
	o.step("keeper")
	if err := write(o.Record, ports); err != nil {
		return State{}, err
	}
	o.step("record")
	return o.state(ctx, k)
}

func (o Options) step(name string) {
	if o.Observe != nil {
		o.Observe(name)
	}
}

func closeIf(k *protect.Keeper) {
	if k != nil {
		k.Close()
	}
}

// installed is what is so now: what is recorded, and without a record what the
// keeper knows.
func (o Options) installed(k *protect.Keeper) ([]protect.Installed, error) {
	if o.Record == "" && k != nil {
		return k.Installed(), nil
	}
	return read(o.Record)
}

const (
	// again is how often a keeper that hangs up is dialed again: it is dying, or
	// has as many clients as it takes.
	again = 20 * time.Millisecond
	tries = 100
)

// dial connects to the standing keeper; nil where there is none. One that cannot
// be spoken with is ended.
func (o Options) dial(ctx context.Context) (k *protect.Keeper, err error) {
	for range tries {
		k, err = protect.Dial(ctx, o.LockDir, "", o.Log)
		switch {
		case err == nil:
			return k, nil
		case errors.Is(err, protect.ErrNoneStands):
			return nil, nil
		case errors.Is(err, protect.ErrOtherVersion):
			return nil, protect.Dismiss(ctx, o.LockDir, "")
		case !errors.Is(err, protect.ErrKeeperGone):
			return nil, err
		}
		time.Sleep(again)
	}
	return nil, err
}

// stand has a keeper stand by for the ports, and no other; for none, no keeper.
func (o Options) stand(ctx context.Context, k *protect.Keeper, ports []protect.Installed) (*protect.Keeper, error) {
	if k != nil && (len(ports) == 0 || outdated(k.Pid())) {
		if err := k.Quit(ctx); err != nil {
			return k, err
		}
		k.Close()
		k = nil
	}
	if len(ports) == 0 {
		return nil, protect.ClearStanding(o.LockDir, "")
	}
	if k == nil {
		err := protect.StartStanding(ctx, o.LockDir, protect.KeeperOptions{Argv: o.Keeper, Log: o.Log})
		if err != nil {
			return nil, err
		}
		o.step("start")
		if k, err = protect.Dial(ctx, o.LockDir, "", o.Log); err != nil {
			return nil, err
		}
	}
	return k, k.Install(ctx, ports)
}

// outdated reports whether a process runs another program than this one, as after
// an upgrade.
func outdated(pid int) bool {
	theirs, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/exe")
	if err != nil {
		return false
	}
	ours, err := os.Stat("/proc/self/exe")
	return err == nil && !os.SameFile(ours, theirs)
}

// RefusedError says why a backend that was asked for would not do.
type RefusedError struct{ protect.Refusal }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s does not work here: %s", e.Backend, e.Why)
}

// Hint says what tells more.
func (e *RefusedError) Hint() string {
	return "`holdfast protect --check` with the same port says which backends would work"
}

// try finds the backend that would hold the ports: that which all ask for, or the
// best. "" where nothing listens on any yet.
func (o Options) try(ctx context.Context, ports []protect.Installed) (protect.Name, error) {
	wanted := ports[0].Backend
	spec := protect.Spec{Backend: wanted, Overlap: wanted == protect.Migrate}
	for _, p := range ports {
		spec.Addresses = append(spec.Addresses, p.Address)
	}
	all, err := protect.Check(ctx, protect.Options{Spec: spec, Keeper: o.Keeper, LockDir: o.LockDir, Log: o.Log})
	if errors.Is(err, protect.ErrNothingListens) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	for _, r := range all {
		switch {
		case wanted != protect.Auto && r.Backend != wanted:
		case r.Why == "":
			return r.Backend, nil
		case r.Backend == wanted:
			return "", &RefusedError{r}
		}
	}
	return "", holdfast.WithHint(protect.ErrNoBackend, "`holdfast protect --check` with the same port says what each way needs")
}
