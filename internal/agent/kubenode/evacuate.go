package kubenode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/cri"
	"holdfast/internal/hosts/kube/evacuate"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/preempt"
)

// newEvacuator returns the evacuator of the node's pods, or nil if no source of notices
// is enabled.
func (x *agent) newEvacuator(client *kube.Client) *evacuate.Evacuator {
	if len(x.cfg.Preempt.Sources()) == 0 {
		return nil
	}
	return evacuate.New(client, podKiller{x.runtime, x.opt.Log}, evacuate.Config{Node: x.cfg.Node}, evacuate.NewMetrics(x.metrics), x.opt.Log)
}

// evacuate starts the evacuator and the sources of notices.
func (x *agent) evacuate(p *tasks.Stack, e *evacuate.Evacuator) {
	if e == nil {
		return
	}
	p.Start("evacuation", e.Run)
	p.Start("preemption notices", func(ctx context.Context) error {
		preempt.Run(ctx, x.cfg.Preempt.Sources(), func(n preempt.Notice) {
			e.Tell(ctx, evacuate.Notice{Kind: evacuate.Kind(n.Kind), Source: n.Source, Reason: n.Reason, Deadline: n.Deadline, Done: n.Done})
		}, x.opt.Log)
		return nil
	})
}

// podKiller kills the containers of pods directly, without the container runtime.
type podKiller struct {
	runtime *cri.Runtime
	log     *slog.Logger
}

// Kill implements evacuate.Killer.
func (k podKiller) Kill(ctx context.Context, uids []string) (dead []string, err error) {
	boxes, containers, err := k.runtime.Pods(ctx)
	if err != nil {
		return nil, err
	}
	opener, err := kill.NewOpener()
	if err != nil {
		return nil, err
	}
	opener.NoShims = true
	pods := map[string]string{} // uids, by sandbox
	for _, b := range boxes {
		if slices.Contains(uids, b.UID) {
			pods[b.ID] = b.UID
		}
	}
	alive := map[string]bool{} // by uid
	var targets []*kill.Target
	of, gone := map[string]string{}, map[string]bool{} // the uids, and the containers that were dead, by container
	var errs []error
	for _, c := range containers {
		uid := pods[c.Sandbox]
		if uid == "" || c.State != "running" {
			continue
		}
		pid, err := k.runtime.Pid(ctx, c.ID)
		var t *kill.Target
		if err == nil {
			t, err = opener.Open(c.ID, c.Name, pid)
		}
		switch {
		case errors.Is(err, kill.ErrGone):
			gone[c.ID] = true
		case err != nil:
			alive[uid] = true
			errs = append(errs, fmt.Errorf("container %s: %w", c.Name, err))
		default:
			targets, of[c.ID] = append(targets, t), uid
		}
	}
	killer := kill.Killer{Log: k.log}
	report := killer.Kill(ctx, targets)
	for _, l := range report.Left {
		alive[of[l.ContainerID]] = true
	}
	for _, t := range targets {
		t.Close()
	}
	// The kubelet may have started containers meanwhile.
	_, containers, err = k.runtime.Pods(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		if uid := pods[c.Sandbox]; uid != "" && c.State == "running" && of[c.ID] == "" && !gone[c.ID] {
			alive[uid] = true
		}
	}
	for _, uid := range uids {
		if !alive[uid] {
			dead = append(dead, uid)
		}
	}
	return dead, errors.Join(errs...)
}
