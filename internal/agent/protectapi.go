package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/history"
)

// Protection implements api.Protector.
func (b backend) Protection(ctx context.Context) (api.Protection, error) {
	h, err := history.Read(protect.LockDir)
	if err != nil {
		return api.Protection{}, err
	}
	var p api.Protection
	for _, name := range protect.Names() {
		if t, ok := h.Totals[name]; ok || name != protect.Auto {
			p.Totals = append(p.Totals, api.HoldTotal{Backend: string(name), Holds: t.Holds, Failed: t.Failed, Connections: t.Connections, Longest: holdfast.Millis(t.Longest)})
		}
	}
	slices.SortFunc(p.Totals, func(x, y api.HoldTotal) int { return cmp.Compare(x.Backend, y.Backend) })
	for _, x := range slices.Backward(h.Holds) {
		p.Holds = append(p.Holds, api.Hold{
			At: x.At, Ports: x.Ports, Program: x.Program, Backend: string(x.Backend), Took: holdfast.Millis(x.Took), Connections: x.Held, Longest: holdfast.Millis(x.Longest),
			Unanswered: x.Unanswered, Reason: string(x.Reason), Failed: x.Failed(), Installed: x.Installed, ExitCode: x.ExitCode,
		})
	}
	if p.Ports, err = b.installedPorts(ctx); err != nil {
		p.NoPorts = err.Error()
	}
	return p, nil
}

// standingLimit is for the keeper that stands by to answer.
const standingLimit = time.Second

// installedPorts are those that a keeper of this agent's network namespace stands
// by for.
func (b backend) installedPorts(ctx context.Context) (out []api.ProtectedPort, err error) {
	ctx, cancel := context.WithTimeout(ctx, standingLimit)
	defer cancel()
	k, err := protect.Dial(ctx, protect.LockDir, "", b.a.log)
	if errors.Is(err, protect.ErrNoneStands) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer k.Close()
	s, err := k.Standing(ctx)
	for _, x := range s.Ports {
		p := api.ProtectedPort{Address: addressOf(x.Address), Listening: x.Listening, Holds: x.Holds, Connections: x.Connections, Longest: holdfast.Millis(x.Longest)}
		if x.Now != nil {
			p.Since, p.Waiting, p.Command = x.Now.Since, x.Now.Stats.Waiting, x.Now.Command
		}
		out = append(out, p)
	}
	return out, err
}

func addressOf(a protect.Address) string {
	if a.Addr.IsValid() {
		return a.String()
	}
	return strconv.Itoa(int(a.Port))
}
