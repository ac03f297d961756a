package apitest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"holdfast"
)

// groups implements api.Groups with what SetGroups has set. A replacement that begins ends
// at the first look, with one row for each replica.
type groups struct{ b *Backend }

// SetGroups sets the groups of replicas.
func (b *Backend) SetGroups(all ...holdfast.Group) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.groups = all
}

func (g groups) Groups(context.Context) ([]holdfast.Group, error) {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	out := slices.Clone(g.b.groups)
	for i := range g.b.groups {
		g.b.groups[i].Replacing = ended(g.b.groups[i].Replacing)
	}
	return out, g.b.fault
}

// ended returns a replacement that is under way as it is when all of it is done.
func ended(r *holdfast.GroupReplacement) *holdfast.GroupReplacement {
	if !r.Active() || r.Phase == "" {
		return r
	}
	next := *r
	row := next.Now
	row.To, row.Total = "n1", holdfast.Millis(90*time.Second)
	row.Boot = holdfast.Phases{Claim: holdfast.Millis(2 * time.Millisecond), Disk: holdfast.Millis(40 * time.Second), Init: holdfast.Millis(5 * time.Second), Start: holdfast.Millis(time.Second), Ready: holdfast.Millis(2 * time.Second)}
	phases := *row.Replica
	phases.CaughtUp, phases.Drained, phases.Stopped = holdfast.Millis(38*time.Second), holdfast.Millis(2*time.Second), holdfast.Millis(300*time.Millisecond)
	row.Replica = &phases
	next.Report.Rows = append(next.Report.Rows, row)
	next.Report.Took, next.Ended, next.Phase = row.Total, Began, ""
	return &next
}

func (g groups) GroupOf(key holdfast.SessionKey) string {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	for _, one := range g.b.groups {
		if string(key) == one.Name || holdfast.IsReplicaKey(one.Name, key) {
			return one.Name
		}
	}
	return ""
}

func (g groups) find(name string) (*holdfast.Group, error) {
	if g.b.fault != nil {
		return nil, g.b.fault
	}
	for i := range g.b.groups {
		if g.b.groups[i].Name == name {
			return &g.b.groups[i], nil
		}
	}
	return nil, fmt.Errorf("group %s: %w", name, holdfast.ErrNotFound)
}

func (g groups) BeginReplace(_ context.Context, name string, keys []holdfast.SessionKey, timeout time.Duration) error {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	one, err := g.find(name)
	switch {
	case err != nil:
		return err
	case one.Replacing.Active():
		return fmt.Errorf("group %s: a replacement is under way: %w", name, holdfast.ErrBusy)
	}
	if len(keys) == 0 {
		keys = []holdfast.SessionKey{one.Replicas[0].Key}
	}
	one.Replacing = &holdfast.GroupReplacement{
		Report:  holdfast.ReplaceReport{Started: Began, Rows: []holdfast.Replacement{}, Gone: []holdfast.SessionKey{}, Unbegun: []holdfast.SessionKey{}},
		Timeout: holdfast.Millis(timeout), Todo: []holdfast.SessionKey{}, Phase: holdfast.ReplaceCatchingUp, Progress: "12 s behind",
		Now: holdfast.Replacement{Key: holdfast.ReplicaKey(name, len(one.Replicas)), Template: name, From: "n1", Started: Began, Replica: &holdfast.ReplicaPhases{Old: keys[0]}},
	}
	return nil
}

func (g groups) StopReplace(_ context.Context, name string) error {
	g.b.mu.Lock()
	defer g.b.mu.Unlock()
	one, err := g.find(name)
	switch {
	case err != nil:
		return err
	case !one.Replacing.Active():
		return fmt.Errorf("group %s: no replacement is under way: %w", name, holdfast.ErrNotFound)
	}
	one.Replacing.Stop = true
	return nil
}
