package install

import (
	"context"
	"errors"
	"slices"

	"holdfast/internal/hosts/protect"
)

// Status returns the installed ports and their state. It changes nothing.
func Status(ctx context.Context, o Options) (State, error) {
	if err := protect.NeedsRoot(); err != nil {
		return State{}, err
	}
	k, err := protect.Dial(ctx, o.LockDir, "", o.Log)
	if err != nil && !errors.Is(err, protect.ErrNoneStands) && !errors.Is(err, protect.ErrKeeperGone) {
		return State{}, err
	}
	defer k.Close()
	return o.state(ctx, k)
}

// state combines the ports of the keeper and of the record.
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
