package group

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
)

const (
	lookEvery  = time.Second      // a keeper compares the replicas with the record, and another node tries to become the keeper
	startLimit = 10 * time.Minute // of a replica outside a replacement; a boot has limits of its own
	retryFirst = time.Second      // until a replica that did not start, or catch up, is tried again; doubles
	retryMost  = 30 * time.Second
	leaveLimit = time.Second // to let go of the keeper's note at the end
)

// keeper keeps one group while this node is its keeper.
type keeper struct {
	*Groups
	spec Spec
	held bool // this node is the keeper; only run uses it

	workers sync.WaitGroup
	mu      sync.Mutex
	busy    map[holdfast.SessionKey]bool  // a worker acts on the replica; "": on the replacement
	retries map[holdfast.SessionKey]retry // of replicas that did not start
}

type retry struct {
	at    time.Time
	pause time.Duration
}

func newKeeper(g *Groups, spec Spec) *keeper {
	return &keeper{Groups: g, spec: spec, busy: map[holdfast.SessionKey]bool{}, retries: map[holdfast.SessionKey]retry{}}
}

// run keeps the group until ctx is done, whenever this node is the keeper.
func (k *keeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		if k.turn(ctx) {
			k.keep(ctx)
			continue
		}
		_ = tasks.Sleep(ctx, lookEvery)
	}
	k.letGo(ctx)
}

// turn takes or confirms the keeper's note. While the store does not answer, a keeper stays
// one: without the store it can do nothing that counts.
func (k *keeper) turn(ctx context.Context) bool {
	lease := k.deps.Lease()
	if lease == 0 {
		return false
	}
	n, err := k.deps.Store.TakeNote(ctx, keeperNotes+k.spec.Name, []byte(k.cfg.Node), lease)
	switch {
	case err == nil, errors.Is(err, store.ErrTaken) && string(n.Value) == string(k.cfg.Node):
		if !k.held {
			k.deps.Log.Info("this node keeps a group of replicas", "group", k.spec.Name)
		}
		k.held = true
	case errors.Is(err, store.ErrTaken):
		k.held = false
	}
	return k.held
}

// letGo drops the keeper's note, so that another node need not wait for the end of the
// lease.
func (k *keeper) letGo(ctx context.Context) {
	if !k.held {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancel()
	n, err := store.FindNote(ctx, k.deps.Store, keeperNotes+k.spec.Name)
	if err == nil && string(n.Value) == string(k.cfg.Node) {
		err = k.deps.Store.DropNote(ctx, n)
	}
	if err != nil && !errors.Is(err, holdfast.ErrNotFound) {
		k.deps.Log.Debug("a keeper's note is not dropped", "group", k.spec.Name, "err", err)
	}
}

// keep looks at the group every lookEvery, until this node is not its keeper any more. Its
// workers have ended when it returns.
func (k *keeper) keep(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer k.deps.Metrics.dropped(k.spec.Name)
	defer k.workers.Wait()
	defer cancel()
	for {
		if err := k.look(ctx); err != nil && ctx.Err() == nil {
			k.deps.Log.Warn("a group is not kept at the moment (will be tried again)", "group", k.spec.Name, "err", err)
		}
		if tasks.Sleep(ctx, lookEvery) != nil {
			return
		}
		if !k.turn(ctx) {
			return
		}
	}
}

// look compares the replicas with the record, and starts workers for what is to be done.
func (k *keeper) look(ctx context.Context) error {
	one, err := k.read(ctx, k.spec.Name)
	if errors.Is(err, holdfast.ErrNotFound) {
		one = holdfast.Group{Name: k.spec.Name, Replicas: []holdfast.Replica{}}
		err = k.create(ctx, one)
	}
	if err != nil {
		return err
	}
	if !one.Replacing.Active() && k.count(&one) {
		err := k.change(ctx, k.spec.Name, func(now *holdfast.Group) error {
			if !now.Replacing.Active() {
				k.count(now)
			}
			one = *now
			return nil
		})
		if err != nil {
			return err
		}
	}
	k.deps.Metrics.counted(one, k.spec.Replicas)
	var keys []holdfast.SessionKey
	for _, r := range one.Replicas {
		keys = append(keys, r.Key)
	}
	owners, err := k.deps.Store.Find(ctx, keys...)
	if err != nil {
		return err
	}
	there := map[holdfast.SessionKey]holdfast.Owner{}
	for _, o := range owners {
		there[o.Key] = o
	}
	for _, r := range one.Replicas {
		k.tend(ctx, one, r, there[r.Key])
	}
	if one.Replacing.Active() {
		k.work(ctx, "", k.replace)
	}
	return nil
}

// count adds replicas that are missing to the record, and makes surplus ones leave. It
// reports whether it has changed the record.
func (k *keeper) count(one *holdfast.Group) (changed bool) {
	var staying []int
	for _, state := range []holdfast.ReplicaState{holdfast.ReplicaServing, holdfast.ReplicaJoining} {
		for i, r := range one.Replicas {
			if r.State == state {
				staying = append(staying, i)
			}
		}
	}
	for _, i := range staying[min(k.spec.Replicas, len(staying)):] { // the joining ones first
		one.Replicas[i].State, changed = holdfast.ReplicaLeaving, true
	}
	for range k.spec.Replicas - len(staying) {
		one.Replicas = append(one.Replicas, holdfast.Replica{Key: freeKey(one), State: holdfast.ReplicaJoining})
		changed = true
	}
	return changed
}

// freeKey returns the replica's key with the lowest number that no replica has.
func freeKey(one *holdfast.Group) holdfast.SessionKey {
	for i := 0; ; i++ {
		if key := holdfast.ReplicaKey(one.Name, i); one.Replica(key) == nil {
			return key
		}
	}
}

// tend starts a worker for a replica that is not as the record says. The replacement acts
// on its own replicas itself: the new one until it serves, and the old one once it leaves.
func (k *keeper) tend(ctx context.Context, one holdfast.Group, r holdfast.Replica, o holdfast.Owner) {
	if p := one.Replacing; p.Active() && p.Phase != "" {
		if r.Key == p.Now.Key && r.State == holdfast.ReplicaJoining || r.Key == p.Now.Replica.Old && r.State == holdfast.ReplicaLeaving {
			return
		}
	}
	switch {
	case r.State == holdfast.ReplicaLeaving:
		k.work(ctx, r.Key, func(ctx context.Context) error { return k.leave(ctx, r) })
	case r.State == holdfast.ReplicaJoining, o.State != holdfast.Ready, o.Epoch != r.Epoch:
		k.work(ctx, r.Key, func(ctx context.Context) error { return k.bring(ctx, r) })
	}
}

// work calls f in a goroutine, unless one for the same key runs or has failed just now.
func (k *keeper) work(ctx context.Context, key holdfast.SessionKey, f func(context.Context) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.busy[key] || time.Now().Before(k.retries[key].at) {
		return
	}
	k.busy[key] = true
	k.workers.Go(func() {
		err := f(ctx)
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.busy, key)
		if err == nil || ctx.Err() != nil {
			delete(k.retries, key)
			return
		}
		pause := min(max(2*k.retries[key].pause, retryFirst), retryMost)
		k.retries[key] = retry{time.Now().Add(pause), pause}
		k.deps.Log.Warn("a group is not as it should be (will be tried again)", "group", k.spec.Name, "replica", key, "pause", pause, "err", err)
	})
}

// bring starts a replica, lets it catch up, and puts it into the rotation.
func (k *keeper) bring(ctx context.Context, r holdfast.Replica) error {
	starting, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	o, err := k.deps.Sessions.Start(starting, r.Key, k.spec.Name)
	if err != nil {
		return err
	}
	if err := k.catchUp(ctx, o, time.Now().Add(k.spec.CatchUpLimit), func(string) {}); err != nil {
		return err
	}
	return k.change(ctx, k.spec.Name, func(now *holdfast.Group) error {
		if same := now.Replica(r.Key); same != nil && same.State != holdfast.ReplicaLeaving {
			same.State, same.Epoch = holdfast.ReplicaServing, o.Epoch
		}
		return nil
	})
}

// leave ends a surplus replica.
func (k *keeper) leave(ctx context.Context, r holdfast.Replica) error {
	o, err := k.deps.Store.Get(ctx, r.Key)
	if err == nil {
		k.drain(ctx, o, time.Now())
		_, err = k.stop(ctx, r.Key, o.Epoch)
	}
	if err != nil && !errors.Is(err, holdfast.ErrNotFound) {
		return err
	}
	return k.change(ctx, k.spec.Name, func(now *holdfast.Group) error {
		if same := now.Replica(r.Key); same != nil && same.State == holdfast.ReplicaLeaving {
			now.Replicas = without(now.Replicas, r.Key)
		}
		return nil
	})
}

// catchUpPause is the time between two repetitions of the command caught_up.
const catchUpPause = time.Second

// errEnded ends the wait for a replica whose container is gone.
var errEnded = errors.New("its container ended before it had caught up")

// catchUp repeats the command caught_up until its exit code is 0, at most until until.
func (k *keeper) catchUp(ctx context.Context, o holdfast.Owner, until time.Time, progress func(string)) error {
	if len(k.spec.CaughtUp) == 0 {
		return nil
	}
	var command []string
	for _, arg := range k.spec.CaughtUp {
		command = append(command, strings.ReplaceAll(arg, "{key}", string(o.Key)))
	}
	limited, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	last := "the command caught_up has not ended"
	for {
		var out lastLine
		code, err := k.deps.Sessions.Exec(limited, o, command, &out)
		switch {
		case err == nil && code == 0:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case limited.Err() != nil:
			return holdfast.WithHint(fmt.Errorf("replica %s has not caught up in time: %s", o.Key, last), "raise caught_up.timeout if it needs more time")
		case err == nil:
			last = out.text(fmt.Sprintf("the command caught_up exits with code %d", code))
		default:
			last = err.Error()
		}
		now, err := k.deps.Store.Get(limited, o.Key)
		if errors.Is(err, holdfast.ErrNotFound) || err == nil && (now.Epoch != o.Epoch || now.State != holdfast.Ready) {
			return fmt.Errorf("replica %s: %w", o.Key, errEnded)
		}
		progress(last)
		_ = tasks.Sleep(limited, catchUpPause)
	}
}

// Polling of the connections of a replica that leaves.
const drainPause = 100 * time.Millisecond

// drain returns when the replica, which left the rotation at since, has no connection, or
// after the limit. An error is not repeated beyond the limit: the replica then ends with
// its connections, as other sessions do.
func (k *keeper) drain(ctx context.Context, o holdfast.Owner, since time.Time) {
	settled := since.Add(k.settle())
	_ = tasks.Sleep(ctx, time.Until(settled))
	limited, cancel := context.WithDeadline(ctx, settled.Add(k.spec.DrainLimit))
	defer cancel()
	for limited.Err() == nil {
		n, err := k.deps.Sessions.Connections(limited, o)
		if err == nil && n == 0 || errors.Is(err, holdfast.ErrNotFound) {
			return
		}
		_ = tasks.Sleep(limited, drainPause)
	}
}

// stopLimit bounds the end of a replica, with its snapshot.
const stopLimit = 5 * time.Minute

// stop ends a replica if its epoch is still the given one. A replica with another epoch was
// started by a later keeper. The notice is about its snapshot.
func (k *keeper) stop(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch) (notice string, err error) {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	o, err := k.deps.Store.Get(ctx, key)
	if errors.Is(err, holdfast.ErrNotFound) || err == nil && o.Epoch != epoch {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	report, err := k.deps.Sessions.Stop(ctx, o)
	switch {
	case errors.Is(err, holdfast.ErrNotFound):
		return "", nil
	case err != nil:
		return "", err
	case len(report.Left) > 0:
		return "", fmt.Errorf("container %s could not be killed: %s", report.Left[0].Name, report.Left[0].Reason)
	}
	return report.Notice, nil
}

func without(all []holdfast.Replica, key holdfast.SessionKey) []holdfast.Replica {
	out := []holdfast.Replica{}
	for _, r := range all {
		if r.Key != key {
			out = append(out, r)
		}
	}
	return out
}
