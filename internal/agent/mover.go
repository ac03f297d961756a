package agent

import (
	"context"
	"path/filepath"

	"holdfast"
	"holdfast/internal/control/config"
	"holdfast/internal/sessions/fleet"
	"holdfast/internal/sessions/fork"
	"holdfast/internal/sessions/move"
)

// newMover returns the mover of sessions' memory. It is nil if no template asks
// for it, or if it cannot work; sessions then boot without an image.
func (a *Agent) newMover() *move.Mover {
	if !a.cfg.SavesMemory() {
		return nil
	}
	m, err := move.New(moveOptions(a))
	if err != nil {
		a.log.Warn("this node can neither save nor restore the memory of sessions", "err", err, "hint", holdfast.HintOf(err))
		return nil
	}
	return m
}

func moveOptions(a *Agent) move.Options {
	c := a.cfg.Moving
	return move.Options{
		Node: a.node, Runsc: c.Runsc, Runtime: c.Runtime, Staged: a.cfg.StagedDir(), Spill: c.Spill, MaxImage: int64(c.MaxImage),
		RatesFile: filepath.Join(a.cfg.DataDir, "moving-rates.json"), SeenFile: filepath.Join(a.cfg.DataDir, "suspended-seen.json"),
		SuccessorWait: fleet.AnnouncementTTL,
		Suspended:     suspendOptions(a.cfg),
		Store:         a.store, Hooks: a.opt.Hook, Metrics: a.metrics, Log: a.log,
	}
}

// ownSuspended returns the notes of the suspended sessions whose images only this node has.
func (a *Agent) ownSuspended(ctx context.Context) (own []holdfast.Suspended, err error) {
	if a.mover == nil {
		return nil, nil
	}
	all, err := move.ListSuspended(ctx, a.store)
	for _, r := range all {
		if r.Node == a.node && !r.Shared && r.Lost == "" && r.From == nil {
			own = append(own, r.Suspended)
		}
	}
	return own, err
}

// forks starts sessions from the memory of others.
func (a *Agent) forks() *fork.Forker {
	return &fork.Forker{Store: a.store, Keep: a.cfg.Moving.Suspended.Keep, Copy: a.sessions.Copy, Start: a.replacer.Start, Mover: a.mover}
}

func suspendOptions(c config.Config) move.SuspendOptions {
	s := c.Moving.Suspended
	return move.SuspendOptions{
		Dir: c.SuspendedDir(), Keep: s.Keep, Space: int64(s.Space), Shared: s.Shared,
		KeyFile: c.ImageKeyFile(), MakeKey: s.KeyFile == "",
		Put: s.Put, Get: s.Get, Drop: s.Drop, Timeout: s.Timeout,
	}
}
