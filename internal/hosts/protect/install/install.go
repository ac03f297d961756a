// Package install keeps a standing keeper of package protect ready for ports that are
// protected often. A hold of such a port begins in a fraction of the time. An
// installation consists of a process and a line in a file, and adds nothing to the path
// of packets (docs/adr/prepared-protection.md).
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

// Options name the files and the program. The network namespace is always that of
// this process.
type Options struct {
	// Keeper is the command of a keeper, see protect.KeeperOptions.
	Keeper []string
	// LockDir is protect.Options.LockDir, which also has the sockets of standing
	// keepers.
	LockDir string
	// Record is the file from which Restore reads the installed ports. With ""
	// the ports are installed until the next boot.
	Record string
	Log    *slog.Logger
	// Observe receives the name of each step when that has ended; it may be nil.
	Observe func(step string)
}

// Port is an installed port.
type Port struct {
	protect.Prepared
	// Standing reports whether a keeper is prepared for it.
	Standing bool `json:"standing"`
	// Recorded reports whether Restore restores it.
	Recorded bool `json:"recorded"`
	// Works is the backend that would hold it now; "" if it was not checked, or
	// nothing listens.
	Works protect.Name `json:"works,omitempty"`
}

// State is the state of the installation.
type State struct {
	// Keeper is the standing keeper; nil: none runs.
	Keeper *Keeper `json:"keeper,omitempty"`
	Ports  []Port  `json:"ports"`
}

// Keeper is the process of a standing keeper.
type Keeper struct {
	Pid   int       `json:"pid"`
	Since time.Time `json:"since"`
	// Outdated reports that it runs another program than this one.
	Outdated bool `json:"outdated,omitempty"`
}

// Add installs further ports, or changes the backend of installed ones. A port on
// which nothing listens yet is accepted. Errors: protect.ErrNoBackend, *RefusedError.
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

// Restore starts a standing keeper for the recorded ports, for example after a boot. It
// replaces a keeper that runs another program.
func Restore(ctx context.Context, o Options) (State, error) {
	return o.change(ctx, func(now []protect.Installed) ([]protect.Installed, error) { return now, nil })
}

// Remove uninstalls these addresses, or all if as is empty. Without installed
// addresses, no process and no file remains. Remove waits for the end of a hold. It
// ignores addresses that are not installed, and returns the remaining state.
func Remove(ctx context.Context, o Options, as []protect.Address) (State, error) {
	if len(as) == 0 {
		return o.change(ctx, nil)
	}
	return o.change(ctx, func(now []protect.Installed) ([]protect.Installed, error) {
		return slices.DeleteFunc(slices.Clone(now), func(p protect.Installed) bool { return slices.Contains(as, p.Address) }), nil
	})
}

// change replaces the installed ports by those that next returns; with a nil next it
// removes all, even if the record is unreadable. If the process is killed at any step,
// the keeper and the record may differ until the next change. Neither holds
// connections.
func (o Options) change(ctx context.Context, next func([]protect.Installed) ([]protect.Installed, error)) (State, error) {
	if err := protect.NeedsRoot(); err != nil {
		return State{}, err
	}
	locks, err := protect.LockInstall(ctx, o.LockDir)
	if err != nil {
		return State{}, err
	}
	defer protect.Unlock(locks)
	o.step("lock")
	k, err := o.dial(ctx)
	if err != nil {
		return State{}, err
	}
	defer func() { k.Close() }() // k may have been replaced
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

// installed returns the recorded ports or, without a record, those of the keeper.
func (o Options) installed(k *protect.Keeper) ([]protect.Installed, error) {
	if o.Record == "" && k != nil {
		return k.Installed(), nil
	}
	return read(o.Record)
}

const (
	// again is the pause until a keeper that closed the connection is dialed again.
	// Such a keeper is ending, or has its maximum number of clients.
	again = 20 * time.Millisecond
	tries = 100
)

// dial connects to the standing keeper; nil: none runs. It ends a keeper of another
// version.
func (o Options) dial(ctx context.Context) (k *protect.Keeper, err error) {
	for range tries {
		k, err = protect.Dial(ctx, o.LockDir, "", o.Log)
		switch {
		case err == nil:
			return k, nil
		case errors.Is(err, protect.ErrNoneStands):
			return nil, nil
		case errors.Is(err, protect.ErrOtherVersion):
			return nil, protect.Dismiss(ctx, o.LockDir)
		case !errors.Is(err, protect.ErrKeeperGone):
			return nil, err
		}
		time.Sleep(again)
	}
	return nil, err
}

// stand makes sure that one keeper stands by for exactly these ports, and that no keeper
// runs without ports.
func (o Options) stand(ctx context.Context, k *protect.Keeper, ports []protect.Installed) (*protect.Keeper, error) {
	if k != nil && (len(ports) == 0 || outdated(k.Pid())) {
		if err := k.Quit(ctx); err != nil {
			return k, err
		}
		k.Close()
		k = nil
	}
	if len(ports) == 0 {
		return nil, protect.ClearStanding(o.LockDir)
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

// outdated reports whether a process runs another program than this one, for example
// after an upgrade.
func outdated(pid int) bool {
	theirs, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/exe")
	if err != nil {
		return false
	}
	ours, err := os.Stat("/proc/self/exe")
	return err == nil && !os.SameFile(ours, theirs)
}

// RefusedError is the reason why the requested backend does not work.
type RefusedError struct{ protect.Refusal }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s does not work here: %s", e.Backend, e.Why)
}

// Hint implements holdfast.Hinter.
func (e *RefusedError) Hint() string {
	return "`holdfast protect --check` with the same port says which backends would work"
}

// try returns the backend that would hold the ports: the requested one, or the best.
// It returns "" if nothing listens on the ports yet.
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
	return "", holdfast.WithHint(protect.ErrNoBackend, "`holdfast protect --check` with the same port says what each backend needs")
}
