package move

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
)

// forks are the samples of forks.
type forks struct {
	children int
	silence  []time.Duration // longest time to an answer of the parent, until the copy was taken
	pause    []time.Duration // as the fork reports it
	ready    []time.Duration // from the request until a child was ready
	all      []time.Duration // from the request until all were
	memory   ForkMemory      // of the last fork
}

// forked measures forks of a session of 64 MiB. The client of the parent keeps its socket, and
// each child has to go on with the parent's variable and counter.
func (x *experiment) forked(ctx context.Context) (*forks, error) {
	const key = "parent"
	f := &forks{children: x.o.Children}
	parent, err := x.begin(ctx, key, copied, "0.5")
	if err != nil {
		return nil, err
	}
	defer parent.close()
	if f.memory.Parent, err = x.memoryOf(ctx, []holdfast.SessionKey{key}); err != nil {
		return nil, err
	}
	for round := range x.o.Forks + warmups {
		one := forks{}
		if err := x.failed(x.forkOnce(ctx, parent, round, &one)); err != nil {
			return nil, err
		}
		if round >= warmups {
			f.silence, f.pause = append(f.silence, one.silence...), append(f.pause, one.pause...)
			f.ready, f.all = append(f.ready, one.ready...), append(f.all, one.all...)
			f.memory.Children = one.memory.Children
		}
	}
	return f, x.stop(ctx, key)
}

const snapshotName = "pause"

func (x *experiment) forkOnce(ctx context.Context, parent *terminal, round int, f *forks) error {
	var children []holdfast.SessionKey
	for i := range x.o.Children {
		children = append(children, holdfast.SessionKey(fmt.Sprintf("child-%d-%d", round, i)))
	}
	// Beside the boots of children an answer takes longer for other reasons, so the pause is that
	// of a snapshot.
	stop := x.silence(ctx, parent.key)
	_, err := x.gateway().API.TakeSnapshot(ctx, parent.key, snapshotName, time.Hour)
	longest, askErr := stop()
	if err := errors.Join(err, askErr); err != nil {
		return err
	}
	if err := x.gateway().API.RemoveSnapshot(ctx, snapshotName); err != nil {
		return err
	}
	if err := x.warm(ctx, copied); err != nil {
		return err
	}
	r, err := x.gateway().API.ForkSession(ctx, parent.key, children)
	if err != nil {
		return err
	}
	f.silence, f.pause, f.all = append(f.silence, longest), append(f.pause, time.Duration(r.Pause)), append(f.all, time.Duration(r.Took))
	x.say("%d of %d children are ready after %v, the pause was at most %v", len(r.Children)-r.Failed(), len(r.Children), r.Took, r.Pause)
	if f.memory.Children, err = x.memoryOf(ctx, ready(r)); err != nil {
		return err
	}
	errs := make([]error, len(children))
	var work sync.WaitGroup
	for i, c := range r.Children {
		if c.Error != "" {
			errs[i] = fmt.Errorf("session %s: %s: %w", c.Key, c.Error, errLost)
			continue
		}
		f.ready = append(f.ready, time.Duration(c.Took))
		work.Go(func() { errs[i] = errors.Join(x.isChild(ctx, c.Key, parent), x.stop(ctx, c.Key)) })
	}
	work.Wait()
	_, err = parent.check(ctx, parent.seen())
	return errors.Join(append(errs, err)...)
}

// ready are the children that have started.
func ready(r holdfast.ForkReport) (keys []holdfast.SessionKey) {
	for _, c := range r.Children {
		if c.Error == "" {
			keys = append(keys, c.Key)
		}
	}
	return keys
}

// isChild checks that a session goes on with the memory of the parent.
func (x *experiment) isChild(ctx context.Context, key holdfast.SessionKey, parent *terminal) error {
	ctx, cancel := context.WithTimeout(ctx, clientTime)
	defer cancel()
	t, _, err := connect(ctx, x.gateway().gateway, key)
	if err != nil {
		return err
	}
	defer t.close()
	t.secret = parent.secret
	_, err = t.check(ctx, 0)
	return err
}

// silence asks the parent's server without a pause until stop is called, which returns the
// longest time to an answer.
func (x *experiment) silence(ctx context.Context, key holdfast.SessionKey) (stop func() (time.Duration, error)) {
	ctx, cancel := context.WithCancel(ctx)
	var longest time.Duration
	ended := make(chan error, 1)
	go func() {
		url := fmt.Sprintf("http://%s/s/%s/healthz", x.gateway().gateway, key)
		for {
			begun := time.Now()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err == nil {
				var res *http.Response
				if res, err = http.DefaultClient.Do(req); err == nil {
					err = res.Body.Close()
				}
			}
			if ctx.Err() != nil {
				err = nil
			}
			if ctx.Err() != nil || err != nil {
				ended <- err
				return
			}
			longest = max(longest, time.Since(begun))
			_ = tasks.Sleep(ctx, time.Millisecond) // the next request sees its end
		}
	}()
	return func() (time.Duration, error) {
		cancel()
		err := <-ended
		return longest, err
	}
}
