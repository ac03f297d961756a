package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/baseline"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
)

// Prefixes of the doctor's notes in the store.
const (
	healthNotes   = "doctor/nodes/"
	baselineNotes = "doctor/baselines/"
)

// Intervals of a node's record. With these a thousand nodes write at most eight
// records a second.
const (
	recordTick  = 10 * time.Second
	recordEvery = 2 * time.Minute  // if a figure has changed
	recordStale = 10 * time.Minute // in any case
)

// maxRecord is the size limit of a record, in bytes.
const maxRecord = 16 << 10

// published is the record that was written last, and its lease.
type published struct {
	record ranking.Record
	lease  store.LeaseID
	wait   time.Duration // until the next record; random, to spread the writes of the nodes
}

// Publish writes the health record of this node to the store, and selects the baseline
// for this host, until ctx is done.
func (d *Doctor) Publish(ctx context.Context) error {
	var last published
	return tasks.Every(ctx, recordTick, func() {
		now := time.Now()
		if since := now.Sub(last.record.At); since >= last.wait || d.o.Lease() != last.lease {
			d.chooseBaseline(ctx)
			if err := d.publishOnce(ctx, now, &last); err != nil && ctx.Err() == nil {
				d.o.Log.Debug("doctor: this host's record for the fleet (trying again)", "err", err)
			}
		}
	})
}

func (d *Doctor) publishOnce(ctx context.Context, now time.Time, last *published) error {
	lease := d.o.Lease()
	facts, at := d.Summary()
	if lease == 0 || at.IsZero() {
		return nil // no lease to write under, or no facts yet
	}
	r := ranking.Record{Node: d.o.Node, At: now.UTC(), Kernel: d.o.Kernel, Role: d.o.Role, Facts: facts, Spinups: d.o.Spinups(now)}
	r.Degraded, _ = d.Rotation.Degraded()
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
	if err := d.o.Store().PutNote(ctx, healthNotes+string(d.o.Node), value, lease); err != nil {
		return err
	}
	*last = published{record: r, lease: lease, wait: wait}
	return nil
}

// alike reports whether no figure of a record has changed by more than a tenth.
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

// Ranking implements api.Doctor. It ranks the records of all nodes that have one.
func (d *Doctor) Ranking(ctx context.Context, by ranking.By) (ranking.Ranking, error) {
	notes, err := d.o.Store().ListNotes(ctx, healthNotes)
	if err != nil {
		return ranking.Ranking{}, err
	}
	var all []ranking.Record
	for _, n := range notes {
		var r ranking.Record
		if err := json.Unmarshal(n.Value, &r); err != nil { // another version's; the other records are still shown
			d.o.Log.Debug("doctor: a node's record cannot be read", "note", n.Name, "err", err)
			continue
		}
		all = append(all, r)
	}
	return ranking.Rank(all, by), nil
}

// Baselines returns the baselines of the fleet, and those that a command saved on this
// host while no agent ran. Of two with the same name it returns the newer one.
func (d *Doctor) Baselines(ctx context.Context) ([]baseline.Baseline, error) {
	byName := make(map[string]baseline.Baseline)
	local, err := d.local.List()
	if err != nil {
		d.o.Log.Warn("doctor: baselines of this host", "err", err)
	}
	notes, err := d.o.Store().ListNotes(ctx, baselineNotes)
	if err != nil && len(local) == 0 {
		return nil, err
	}
	for _, b := range local {
		byName[b.Name] = b
	}
	for _, n := range notes {
		b, err := baseline.Decode(n.Value)
		if err != nil {
			d.o.Log.Warn("doctor: a baseline of the fleet cannot be read", "note", n.Name, "err", err)
			continue
		}
		if mine, ok := byName[b.Name]; !ok || b.At.After(mine.At) {
			byName[b.Name] = b
		}
	}
	all := slices.Collect(maps.Values(byName))
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all, nil
}

// chooseBaseline selects the baseline for this host.
func (d *Doctor) chooseBaseline(ctx context.Context) {
	all, err := d.Baselines(ctx)
	if err != nil {
		return // the previous selection remains
	}
	b, err := baseline.Choose(all, d.o.Kernel, d.o.Role)
	if err != nil {
		d.known.Store(nil)
		return
	}
	known := b.Known()
	d.known.Store(&known)
}

// maxBaselines limits the baselines of a fleet.
const maxBaselines = 200

// SaveBaseline saves a baseline for the whole fleet.
func (d *Doctor) SaveBaseline(ctx context.Context, b baseline.Baseline) error {
	d.saving.Lock()
	defer d.saving.Unlock()
	value, err := baseline.Encode(b)
	if err != nil {
		return err
	}
	all, err := d.Baselines(ctx)
	if err != nil {
		return err
	}
	if len(all) >= maxBaselines && !slices.ContainsFunc(all, func(x baseline.Baseline) bool { return x.Name == b.Name }) {
		return holdfast.WithHint(fmt.Errorf("there are %d baselines already", len(all)), "remove some with: holdfast doctor baseline rm")
	}
	if err := d.o.Store().PutNote(ctx, baselineNotes+b.Name, value, 0); err != nil {
		return err
	}
	d.chooseBaseline(ctx)
	return nil
}

// RemoveBaseline removes a baseline from the fleet and from this host.
func (d *Doctor) RemoveBaseline(ctx context.Context, name string) error {
	d.saving.Lock()
	defer d.saving.Unlock()
	if err := baseline.CheckName(name); err != nil {
		return err
	}
	here := d.local.Remove(name)
	if here != nil && !errors.Is(here, holdfast.ErrNotFound) {
		return here
	}
	notes, err := d.o.Store().ListNotes(ctx, baselineNotes+name)
	if err != nil {
		return err
	}
	there := slices.IndexFunc(notes, func(n store.Note) bool { return n.Name == baselineNotes+name })
	if there < 0 {
		return here
	}
	if err := d.o.Store().DropNote(ctx, notes[there]); err != nil {
		return err
	}
	d.chooseBaseline(ctx)
	return nil
}
