package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/store/trace"
	"holdfast/test/check"
)

// traceSuffix is the suffix of the nodes' trace files.
const traceSuffix = ".jsonl"

// historyLimit bounds the checking of one key's history.
const historyLimit = 30 * time.Second

// Verdict is the result of the checks.
type Verdict struct {
	Overlap  string      `json:"overlap,omitempty"` // the evidence; "" for none
	Overlaps int         `json:"overlaps"`
	Alive    check.Alive `json:"alive"`             // what the check of Overlap covered
	History  string      `json:"history,omitempty"` // the evidence; "" for a linearizable history
	// Restore means that etcd was restored from a backup. Its history is then not
	// linearizable, and not checked.
	Restore  bool        `json:"store_restored,omitempty"`
	Asked    check.Asked `json:"asked"`               // what the check of History covered
	HandedOn string      `json:"handed_on,omitempty"` // evidence of containers that served two claims; "" for none
	// Containers is the number of containers that served a session. Warm is the number
	// of them that ran before their session.
	Containers int `json:"containers"`
	Warm       int `json:"warm"`
	// Restored is the number of claims that restored the memory of the previous claim.
	Restored int `json:"restored"`
	// Repeated is the number of containers that ran without a client before the agent removed
	// them, because the engine had failed while it restored them.
	Repeated int `json:"repeated"`
}

// judge checks the ticks and traces of containers and nodes. The error is about the check itself.
func (x *experiment) judge(ctx context.Context) (Verdict, []change, error) {
	var v Verdict
	changes, err := x.observer.all(ctx)
	if err != nil {
		return v, nil, err
	}
	lives, err := check.ReadLives(x.ticks())
	if err != nil {
		return v, nil, err
	}
	v.Alive, err = check.Overlap(lives)
	var two *check.OverlapError
	switch {
	case errors.As(err, &two):
		repeated, err := x.repeated()
		if err != nil {
			return v, nil, err
		}
		if v.Repeated = withoutRepeated(two, repeated); len(two.Pairs) > 0 {
			v.Overlap, v.Overlaps = two.Error(), len(two.Pairs)
		}
	case err != nil:
		return v, nil, err
	}
	var calls []trace.Call
	for _, m := range x.nodes {
		of, err := trace.Read(m.trace)
		if err != nil {
			return v, nil, err
		}
		calls = append(calls, of...)
	}
	if v.Restore = x.restored; v.Restore {
		return v, changes, v.handedOn(changes)
	}
	v.Asked, err = check.History(history(calls, changes), historyLimit)
	if errors.Is(err, check.ErrNothing) {
		return v, nil, err
	}
	if err != nil {
		v.History = err.Error()
	}
	return v, changes, v.handedOn(changes)
}

// handedOn checks that no container served two claims. The error is about the check
// itself.
func (v *Verdict) handedOn(changes []change) (err error) {
	var uses []check.Use
	for _, c := range changes {
		if c.gone || c.owner.State != holdfast.Ready {
			continue
		}
		if c.owner.Memory == holdfast.Restored {
			v.Restored++
		}
		u := check.Use{Container: c.owner.ContainerID, Key: c.key, Epoch: c.owner.Epoch}
		if c.owner.Boot.Create == 0 && !slices.Contains(uses, u) {
			v.Warm++
		}
		uses = append(uses, u)
	}
	v.Containers, err = check.HandedOn(uses)
	if handed := (*check.HandedError)(nil); errors.As(err, &handed) {
		v.HandedOn = err.Error()
		return nil
	}
	return err
}

// history merges the nodes' calls and etcd's own lease expiries.
func history(calls []trace.Call, changes []change) []check.Op {
	var ops []check.Op
	for _, c := range calls {
		ops = append(ops, opsOf(c)...)
	}
	return append(ops, expiries(calls, changes)...)
}

// opsOf returns a call's operations on sessions; none for a call about leases.
func opsOf(c trace.Call) []check.Op {
	base := check.Op{Client: string(c.Node), Call: c.Start, Return: c.End, Result: check.Unknown}
	switch c.Op {
	case trace.Release:
		return releases(base, c)
	case trace.Claim:
		base.Kind = check.Claim
	case trace.Advance:
		base.Kind, base.Given = check.Advance, version(c.About[0])
	case trace.Get:
		base.Kind = check.Read
	default:
		return nil
	}
	base.Key = c.About[0].Key
	if len(c.Got) > 0 {
		base.Got = version(c.Got[0])
	}
	switch c.Result {
	case trace.OK:
		base.Result = check.OK
	case trace.Taken:
		base.Result = check.Taken
	case trace.Stale:
		base.Result = check.Stale
	case trace.NotFound:
		base.Result = check.None
	case trace.LeaseGone, trace.Order:
		return nil // the call had no effect and did not read the record
	}
	return []check.Op{base}
}

func releases(base check.Op, c trace.Call) []check.Op {
	deleted := map[holdfast.SessionKey]bool{}
	for _, r := range c.Got {
		deleted[r.Key] = true
	}
	var ops []check.Op
	for _, r := range c.About {
		o := base
		o.Kind, o.Key, o.Given = check.Release, r.Key, version(r)
		switch {
		case deleted[r.Key]:
			o.Result = check.OK
		case c.Result == trace.OK:
			o.Result = check.Kept
		}
		ops = append(ops, o)
	}
	return ops
}

func version(r trace.Record) check.Version {
	return check.Version{Epoch: r.Epoch, Revision: r.Revision}
}

// claimID names a claim that succeeded.
type claimID struct {
	key   holdfast.SessionKey
	epoch holdfast.Epoch
}

// expiries returns the deletes that etcd reported and that no release explains: the
// leases' expiries. Each took effect after the last renewal of the lease had been sent,
// and before it was seen. A release without an answer explains a delete, too: the time
// of its effect is unknown, and the lease may have been renewed since.
func expiries(calls []trace.Call, changes []change) []check.Op {
	released := map[check.Version]bool{} // revisions are the whole store's
	leases := map[claimID]store.LeaseID{}
	renewed := map[store.LeaseID][]time.Duration{} // sendings of good renewals, in order
	for _, c := range slices.SortedFunc(slices.Values(calls), func(a, b trace.Call) int { return int(a.Start - b.Start) }) {
		switch {
		case c.Op == trace.Release:
			for _, o := range opsOf(c) {
				if o.Result != check.Kept {
					released[o.Given] = true
				}
			}
		case c.Result != trace.OK:
		case c.Op == trace.Claim:
			leases[claimID{c.About[0].Key, c.Got[0].Epoch}] = c.Lease
		case c.Op == trace.Grant, c.Op == trace.KeepAlive:
			renewed[c.Lease] = append(renewed[c.Lease], c.Start)
		}
	}
	var ops []check.Op
	for _, c := range changes {
		if !c.gone || released[check.Version{Epoch: c.owner.Epoch, Revision: c.owner.Revision}] {
			continue
		}
		o := check.Op{
			Client: "etcd", Kind: check.Expire, Key: c.key, Return: c.at, Result: check.OK,
			Given: check.Version{Epoch: c.owner.Epoch, Revision: c.owner.Revision},
		}
		for _, sent := range renewed[leases[claimID{c.key, c.owner.Epoch}]] {
			if sent < c.at {
				o.Call = sent
			}
		}
		ops = append(ops, o)
	}
	return ops
}

// handover is the outcome for a session that an act took from its node.
type handover struct {
	event
	took time.Duration // from the act until it was ready; 0 if it never was
	kept bool          // the session stayed unchanged
}

// handovers follows, by the records, the sessions that nodes served when an act began.
// ended is the time at which the nodes were told to end.
func handovers(events []event, changes []change, ended time.Duration) []handover {
	byKey := map[holdfast.SessionKey][]change{}
	for _, c := range changes {
		byKey[c.key] = append(byKey[c.key], c)
	}
	var out []handover
	for i, e := range events {
		until := ended
		if i+1 < len(events) {
			until = events[i+1].begin
		}
		for _, key := range slices.Sorted(maps.Keys(e.owned)) {
			out = append(out, follow(e, until, e.owned[key], byKey[key]))
		}
	}
	return out
}

// follow finds the outcome for one epoch of a session. A record that still exists when
// the next act or the end begins was kept through this act.
func follow(e event, until time.Duration, epoch holdfast.Epoch, changes []change) handover {
	h := handover{event: e, kept: true}
	for _, c := range changes {
		switch {
		case c.at < e.begin:
		case h.kept && c.at >= until:
			return h
		case c.gone && c.owner.Epoch == epoch:
			h.kept = false
		case !c.gone && c.owner.Epoch > epoch && c.owner.State == holdfast.Ready:
			h.took, h.kept = c.at-e.begin, false
			return h
		}
	}
	return h
}

// failed counts the violations.
func (v Verdict) failed() int {
	n := v.Overlaps
	for _, evidence := range []string{v.History, v.HandedOn} {
		if evidence != "" {
			n++
		}
	}
	return n
}

func (v Verdict) String() string {
	overlap, history, handed := "no overlap", "the history is linearizable", "no container served two claims"
	if v.Overlap != "" {
		overlap = v.Overlap
	}
	switch {
	case v.Restore:
		history = "the history was not checked, because the store was restored"
	case v.History != "":
		history = v.History
	}
	if v.HandedOn != "" {
		handed = v.HandedOn
	}
	return fmt.Sprintf("%s (%s); %s (%s); %s (%d containers, %d of them warm, %d that went on from their memory, %d restores repeated)", overlap, v.Alive, history, v.Asked, handed, v.Containers, v.Warm, v.Restored, v.Repeated)
}
