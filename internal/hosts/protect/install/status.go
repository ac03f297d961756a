package install

import (
	"context"
	"errors"
	"os"
	"slices"

	"holdfast"
	"holdfast/internal/hosts/protect"
)

// Status is what is installed and how it is doing. It changes nothing.
func Status(ctx context.Context, o Options) (State, error) {
	if os.Geteuid() != 0 {
		return State{}, holdfast.WithHint(protect.ErrNotRoot, "run it with sudo")
	}
	k, err := protect.Dial(ctx, o.LockDir, "", o.Log)
	if err != nil && !errors.Is(err, protect.ErrNoneStands) && !errors.Is(err, protect.ErrKeeperGone) {
		return State{}, err
	}
	defer closeIf(k)
	return o.state(ctx, k)
}

// state joins what the keeper and the record say.
func (o Options) state(ctx context.Context, k *protect.Keeper) (State, error) {
	recorded, err := read(o.Record)
	if err != nil {
		return State{}, err
	}
	s := State{Ports: []Port{}}
	if k != nil {
		st, err := k.Standing(ctx)
		if err != nil {
			return State{}, err
		}
		s.Keeper = &Keeper{Pid: k.Pid(), Since: st.Since, Outdated: outdated(k.Pid())}
		for _, p := range st.Ports {
			s.Ports = append(s.Ports, Port{Prepared: p, Standing: true, Recorded: at(recorded, p.Address) >= 0})
		}
	}
	for _, r := range recorded {
		if !slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Address == r.Address }) {
			s.Ports = append(s.Ports, Port{Prepared: protect.Prepared{Installed: r}, Recorded: true})
		}
	}
	return s, nil
}
