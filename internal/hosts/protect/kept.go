package protect

import (
	"context"
	"time"

	"holdfast/internal/hosts/protect/keep"
)

// argRelay is the argument of a process that keeps connections.
const argRelay = "relay"

const (
	// keepLimit limits each step of keeping connections beside the waits that were asked for.
	keepLimit = 10 * time.Second
	// watchLimit limits the wait before the hold.
	watchLimit = time.Second
	// overlapSettle limits the wait for idle connections if the old server answers all
	// requests itself.
	overlapSettle = 250 * time.Millisecond
)

// kept keeps idle connections during a protect. If that fails, the restart goes on without
// it. Its methods do nothing for nil, or after close.
type kept struct {
	Options
	r       *Report
	process *keep.Process
	ports   []uint16
}

// watch finds the connections to keep and watches them for Drain, up to watchLimit: a request
// that takes longer would be cut off anyway. nil: none are to be kept, or none can be.
func (o Options) watch(ctx context.Context, r *Report, step func(string)) *kept {
	if o.Keep == "" || o.Keep == keep.None {
		return nil
	}
	k := &kept{Options: o, r: r}
	r.Kept = &keep.Report{}
	spec := keep.Spec{Clients: o.Keep, For: o.KeepFor, PIDs: o.PIDs}
	for _, a := range o.Addresses {
		spec.Addresses = append(spec.Addresses, keep.Address(a))
	}
	argv := append(o.Keeper[:len(o.Keeper):len(o.Keeper)], argRelay)
	var err error
	if k.process, err = keep.Start(keep.Options{Argv: argv, Netns: o.Netns}); err != nil {
		o.Log.Warn("protect: connections are not kept", "err", err)
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, keepLimit)
	defer cancel()
	if k.ports, r.Kept.Refused, err = k.process.Watch(limited, spec); k.failed(err) || len(k.ports) == 0 {
		k.close()
		return nil
	}
	pause := time.NewTimer(min(o.Drain, watchLimit))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
	step("watch")
	return k
}

// failed ends the keeping of connections after an error.
func (k *kept) failed(err error) bool {
	if err != nil {
		k.Log.Warn("protect: connections are not kept", "err", err)
		k.close()
	}
	return err != nil
}

func (k *kept) off() bool { return k == nil || k.process == nil }

// shut keeps new requests from the old server.
func (k *kept) shut(ctx context.Context) {
	if k.off() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keepLimit)
	defer cancel()
	k.failed(k.process.Shut(ctx))
}

// settles returns the ports for whose accepted connections settle waits.
func (k *kept) settles() []uint16 {
	if k.off() {
		return nil
	}
	return k.ports
}

// settle waits until all requests are answered, for the rest of Drain.
func (k *kept) settle(ctx context.Context) {
	if k.off() {
		return
	}
	limit := max(0, k.Drain-k.r.Drained.Took)
	if k.Overlap {
		limit = min(limit, overlapSettle)
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit+keepLimit)
	defer cancel()
	busy, err := k.process.Settle(ctx, limit)
	if !k.failed(err) && !k.Overlap {
		k.r.Drained.Left += busy
	}
	k.r.Drained.Took += time.Since(began)
}

// relay passes requests on to the new server, if one listens.
func (k *kept) relay() {
	if k.off() {
		return
	}
	if !k.r.Released.Listening {
		k.close()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), keepLimit)
	defer cancel()
	report, err := k.process.Relay(ctx)
	if k.failed(err) {
		return
	}
	k.r.Kept = &report
	k.close()
}

// close ends it. What was kept is let go, unless it is relayed.
func (k *kept) close() {
	if k.off() {
		return
	}
	k.process.Close()
	k.process = nil
}
