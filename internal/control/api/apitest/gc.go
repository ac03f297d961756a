package apitest

import (
	"context"
	"time"

	"holdfast"
	"holdfast/internal/hosts/gc"
)

// Collection is what a Backend's garbage collection answers.
type Collection struct {
	Plan     gc.Proposal
	Objects  gc.Inventory
	Outcomes []gc.Outcome // of a run: deleted, except those of the kind volume
	Cycle    gc.Cycle
	Status   gc.Status
	History  []gc.Cycle
}

// SetCollection sets the answers of garbage collection.
func (b *Backend) SetCollection(c Collection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.collection = c
}

func (b *Backend) collected() (Collection, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.collection, b.fault
}

// collector implements api.Collector.
type collector struct{ b *Backend }

func (x collector) Plan(context.Context) (gc.Proposal, error) {
	c, err := x.b.collected()
	return c.Plan, err
}

func (x collector) List(context.Context) (gc.Inventory, error) {
	c, err := x.b.collected()
	return c.Objects, err
}

func (x collector) Collect(_ context.Context, _ gc.Trigger, progress func(gc.Outcome, bool)) (gc.Cycle, error) {
	c, err := x.b.collected()
	if err != nil {
		return gc.Cycle{}, err
	}
	for _, o := range c.Outcomes {
		progress(o, o.Kind != gc.Volumes)
	}
	return c.Cycle, nil
}

func (x collector) Status(context.Context) (gc.Status, error) {
	c, err := x.b.collected()
	return c.Status, err
}

func (x collector) History(limit int) ([]gc.Cycle, error) {
	c, err := x.b.collected()
	if limit > 0 {
		c.History = c.History[:min(limit, len(c.History))]
	}
	return c.History, err
}

// SomeCollection returns a collection with every kind of entry.
func SomeCollection() Collection {
	disk := gc.Disk{Total: 100 << 30, Free: 12 << 30, Inodes: 1000, FreeInodes: 600}
	after := disk
	after.Free += 2 << 30
	done := gc.Outcome{
		Kind: gc.Images, Name: "app:1", ID: "sha256:aa", Reason: "disk over 85%, last used 3 days ago", At: Began,
		Bytes: 2 << 30, Names: 20000, Linked: 19000, Locked: holdfast.Millis(200 * time.Millisecond), Waited: holdfast.Millis(4 * time.Second), Forced: true,
	}
	kept := gc.Outcome{Kind: gc.Volumes, Name: "data", Reason: "container web uses it now", At: Began}
	cycle := gc.Cycle{
		Begun: Began, Took: holdfast.Millis(9 * time.Second), Ended: true, Trigger: gc.ByThreshold, Before: disk, After: after, Planned: 2,
		Deleted: []gc.Outcome{done}, Skipped: []gc.Outcome{kept}, Suspended: holdfast.Millis(4 * time.Second),
	}
	killed := gc.Cycle{Begun: Began.Add(-time.Hour), Trigger: gc.ByRequest, Before: disk, After: disk, Deleted: []gc.Outcome{}, Skipped: []gc.Outcome{}}
	return Collection{
		Plan: gc.Proposal{
			At: Began, Disk: disk, Level: gc.Pressed, Bytes: 2 << 30, Unknown: 1, Notices: []string{"this does not reach the low mark (75%)"},
			Deletions: []gc.Deletion{
				{Kind: gc.Images, ID: "sha256:aa", Name: "app:1", Refs: []string{"app:1", "app:2"}, Rule: "images", Reason: done.Reason, Bytes: 2 << 30},
				{Kind: gc.Stopped, ID: "cc", Name: "job", Rule: "ended containers", Reason: "disk over 85%, ended 2 days ago", Bytes: -1},
			},
		},
		Objects: gc.Inventory{
			At: Began, Disk: disk, Level: gc.Pressed, Bytes: 5 << 29,
			Objects: []gc.Object{
				{Kind: gc.Images, ID: "sha256:aa", Name: "app:1", Refs: []string{"app:1", "app:2"}, Bytes: 2 << 30, Shared: 1 << 29, LastUse: Began.Add(-72 * time.Hour), Rule: "images"},
				{Kind: gc.Running, ID: "dd", Name: "web", Bytes: -1, LastUse: Began, Kept: "it is running"},
				{Kind: gc.Volumes, ID: "data", Name: "data", Bytes: -1, Kept: "container web uses it (running)"},
			},
		},
		Outcomes: []gc.Outcome{done, kept}, Cycle: cycle, History: []gc.Cycle{cycle, killed},
		Status: gc.Status{
			Disk: disk, Level: gc.Pressed, High: gc.Percent(85), Low: gc.Percent(75), Critical: gc.Percent(95), NoLinks: "the storage is btrfs, not overlay2",
			Last: &cycle, Suspended: holdfast.Millis(4 * time.Second),
			Beside:  gc.Figures{Count: 4, Slow: 1, SlowPercent: 25, P50: holdfast.Millis(time.Second), P99: holdfast.Millis(2 * time.Second)},
			Without: gc.Figures{Count: 1000, Slow: 2, SlowPercent: .2, P50: holdfast.Millis(time.Second), P99: holdfast.Millis(1900 * time.Millisecond)},
		},
	}
}
