package apitest

import (
	"context"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/experiment"
)

// experiments implements api.Experiments with one experiment that runs until Stop.
type experiments struct{ b *Backend }

func (e experiments) List() []holdfast.Experiment {
	e.b.mu.Lock()
	defer e.b.mu.Unlock()
	x := holdfast.Experiment{Name: "next-image", By: experiment.BySession, Template: "web", With: "web-next", Share: 10, State: holdfast.ExperimentRunning, Begun: Began}
	if e.b.stopWhy != "" {
		x.State, x.Stopped, x.Why = holdfast.ExperimentStopped, Began.Add(time.Hour), e.b.stopWhy
	}
	return []holdfast.Experiment{x, {Name: "overlay2", By: experiment.ByNode, Share: 50, State: holdfast.ExperimentRunning, Begun: Began, NodeArm: holdfast.Treatment}}
}

func (e experiments) Report(ctx context.Context, name string) (experiment.Report, error) {
	for _, x := range e.List() {
		if x.Name != name {
			continue
		}
		records := make([]spinup.Record, 0, 40)
		for i := range cap(records) {
			r := Samples()[0]
			r.Outcome, r.Arms = spinup.OK, map[string]string{name: string(holdfast.Control)}
			if i%4 == 0 {
				r.Arms[name] = string(holdfast.Treatment)
			}
			records = append(records, r)
		}
		q := spinup.Question{By: spinup.ByArm, Filter: spinup.Filter{Experiment: name}}
		f, err := spinup.FleetReportOf([]spinup.NodeSketch{{Node: "n1", Sketch: spinup.NewSketch(records, q, spinup.DefaultRules())}}, q)
		if err != nil {
			return experiment.Report{}, err
		}
		return experiment.NewReport(x, f), e.b.failure()
	}
	return experiment.Report{}, fmt.Errorf("experiment %s: %w", name, holdfast.ErrNotFound)
}

func (e experiments) Stop(_ context.Context, name, why string) error {
	e.b.mu.Lock()
	defer e.b.mu.Unlock()
	if name != "next-image" {
		return fmt.Errorf("experiment %s: %w", name, holdfast.ErrNotFound)
	}
	if e.b.fault == nil {
		e.b.stopWhy = why
	}
	return e.b.fault
}
