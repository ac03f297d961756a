package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/baseline"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
)

// Where the doctor's notes are in the store.
const (
	healthNotes   = "doctor/nodes/"
	baselineNotes = "doctor/baselines/"
)

// How often a node writes its record: a thousand nodes write eight a second at
// most.
const (
	recordTick  = 10 * time.Second
	recordEvery = 2 * time.Minute  // where something has changed
	recordStale = 10 * time.Minute // at any rate
)

// maxRecord bounds a record, in bytes.
const maxRecord = 16 << 10

// published is what was written last, and under which lease.
type published struct {
	record ranking.Record
	lease  store.LeaseID
	wait   time.Duration // until the next, spread over the nodes
}

// publishHealth writes this node's record for the fleet until ctx is done, and looks
// which baseline goes for this host.
func (a *Agent) publishHealth(ctx context.Context) error {
	var last published
	return tasks.Every(ctx, recordTick, func() {
		now := time.Now()
		if since := now.Sub(last.record.At); since >= last.wait || a.lease.ID() != last.lease {
			hostDoctor{a.doctor.watch, a}.chooseBaseline(ctx)
			if err := a.publishOnce(ctx, now, &last); err != nil && ctx.Err() == nil {
				a.log.Debug("doctor: this host's record for the fleet (will be tried again)", "err", err)
			}
		}
	})
}

func (a *Agent) publishOnce(ctx context.Context, now time.Time, last *published) error {
	lease := a.lease.ID()
	facts, at := a.doctor.watch.Summary()
	if lease == 0 || at.IsZero() {
		return nil // nothing may be written, or nothing is known
	}
	r := ranking.Record{Node: a.node, At: now.UTC(), Kernel: a.doctor.kernel, Role: a.cfg.Doctor.Role, Facts: facts, Spinups: a.spinups.Figures(now)}
	r.Degraded, _ = a.doctor.rotation.Degraded()
	wait := recordEvery + rand.N(recordEvery/4)
	if lease == last.lease && now.Sub(last.record.At) < recordStale && alike(last.record, r) {
		last.wait = min(last.wait+wait, recordStale)
		return nil
	}
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(value) > maxRecord {
		return fmt.Errorf("the record has %d bytes", len(value))
	}
	if err := a.store.PutNote(ctx, healthNotes+string(a.node), value, lease); err != nil {
		return err
	}
	*last = published{record: r, lease: lease, wait: wait}
	return nil
}

// alike reports whether a record says nothing new: no figure has changed by over a
// tenth.
func alike(a, b ranking.Record) bool {
	if a.Degraded != b.Degraded || a.Spinups.Count != b.Spinups.Count || len(a.Facts) != len(b.Facts) {
		return false
	}
	for name, x := range a.Facts {
		y, ok := b.Facts[name]
		if !ok || math.Abs(x-y) > 0.1*max(math.Abs(x), math.Abs(y)) {
			return false
		}
	}
	return true
}

// fleetHealth are the records of all nodes that have one.
func (a *Agent) fleetHealth(ctx context.Context) ([]ranking.Record, error) {
	notes, err := a.store.ListNotes(ctx, healthNotes)
	if err != nil {
		return nil, err
	}
	var all []ranking.Record
	for _, n := range notes {
		var r ranking.Record
		if err := json.Unmarshal(n.Value, &r); err != nil { // another version's; it must not hide the others
			a.log.Debug("doctor: a node's record cannot be read", "note", n.Name, "err", err)
			continue
		}
		all = append(all, r)
	}
	return all, nil
}

// Baselines are those of the fleet, and those that a command saved on this host
// while no agent ran. Where both have one of a name the newer counts.
func (h hostDoctor) Baselines(ctx context.Context) ([]baseline.Baseline, error) {
	byName := make(map[string]baseline.Baseline)
	local, err := h.a.doctor.local.List()
	if err != nil {
		h.a.log.Warn("doctor: baselines of this host", "err", err)
	}
	notes, err := h.a.store.ListNotes(ctx, baselineNotes)
	if err != nil && len(local) == 0 {
		return nil, err
	}
	for _, b := range local {
		byName[b.Name] = b
	}
	for _, n := range notes {
		b, err := baseline.Decode(n.Value)
		if err != nil {
			h.a.log.Warn("doctor: a baseline of the fleet cannot be read", "note", n.Name, "err", err)
			continue
		}
		if mine, ok := byName[b.Name]; !ok || b.At.After(mine.At) {
			byName[b.Name] = b
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(x, y baseline.Baseline) int { return strings.Compare(x.Name, y.Name) }), nil
}

// chooseBaseline looks which baseline goes for this host.
func (h hostDoctor) chooseBaseline(ctx context.Context) {
	all, err := h.Baselines(ctx)
	if err != nil {
		return // the one that was known goes on
	}
	b, err := baseline.Choose(all, h.a.doctor.kernel, h.a.cfg.Doctor.Role)
	if err != nil {
		h.a.doctor.known.Store(nil)
		return
	}
	known := b.Known()
	h.a.doctor.known.Store(&known)
}

// maxBaselines bounds those of a fleet.
const maxBaselines = 200

// SaveBaseline keeps one for the whole fleet.
func (h hostDoctor) SaveBaseline(ctx context.Context, b baseline.Baseline) error {
	h.a.doctor.saving.Lock()
	defer h.a.doctor.saving.Unlock()
	value, err := baseline.Encode(b)
	if err != nil {
		return err
	}
	all, err := h.Baselines(ctx)
	if err != nil {
		return err
	}
	if len(all) >= maxBaselines && !slices.ContainsFunc(all, func(x baseline.Baseline) bool { return x.Name == b.Name }) {
		return holdfast.WithHint(fmt.Errorf("there are %d baselines", len(all)), "remove some with: holdfast doctor baseline rm")
	}
	if err := h.a.store.PutNote(ctx, baselineNotes+b.Name, value, 0); err != nil {
		return err
	}
	h.chooseBaseline(ctx)
	return nil
}

func (h hostDoctor) RemoveBaseline(ctx context.Context, name string) error {
	h.a.doctor.saving.Lock()
	defer h.a.doctor.saving.Unlock()
	if err := baseline.CheckName(name); err != nil {
		return err
	}
	here := h.a.doctor.local.Remove(name)
	if here != nil && !errors.Is(here, holdfast.ErrNotFound) {
		return here
	}
	notes, err := h.a.store.ListNotes(ctx, baselineNotes+name)
	if err != nil {
		return err
	}
	there := slices.IndexFunc(notes, func(n store.Note) bool { return n.Name == baselineNotes+name })
	if there < 0 {
		return here
	}
	if err := h.a.store.DropNote(ctx, notes[there]); err != nil {
		return err
	}
	h.chooseBaseline(ctx)
	return nil
}
