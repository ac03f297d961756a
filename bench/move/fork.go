package move

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast"
)

// forks are the samples of forks.
type forks struct {
	children int
	silence  []time.Duration // longest time without a number of the parent's counter, of each fork
	pause    []time.Duration // as the fork reports it
	ready    []time.Duration // from the request until a child was ready
	all      []time.Duration // from the request until all were
}

// forkEvery is the interval of the parent's counter.
const forkEvery = "0.005"

// forked measures forks of a session of 64 MiB. The client of the parent keeps its socket, and
// each child has to go on with the parent's variable and counter.
func (x *experiment) forked(ctx context.Context) (*forks, error) {
	const key = "parent"
	f := &forks{children: x.o.Children}
	parent, err := x.begin(ctx, key, copied, forkEvery)
	if err != nil {
		return nil, err
	}
	defer parent.close()
	for round := range x.o.Forks + warmups {
		one := forks{}
		if err := x.failed(x.forkOnce(ctx, parent, round, &one)); err != nil {
			return nil, err
		}
		if round >= warmups {
			f.silence, f.pause = append(f.silence, one.silence...), append(f.pause, one.pause...)
			f.ready, f.all = append(f.ready, one.ready...), append(f.all, one.all...)
		}
	}
	return f, x.stop(ctx, key)
}

func (x *experiment) forkOnce(ctx context.Context, parent *terminal, round int, f *forks) error {
	var children []holdfast.SessionKey
	for i := range x.o.Children {
		children = append(children, holdfast.SessionKey(fmt.Sprintf("child-%d-%d", round, i)))
	}
	before := parent.seen()
	r, err := x.gateway().api.ForkSession(ctx, parent.key, children)
	if err != nil {
		return err
	}
	f.silence, f.pause, f.all = append(f.silence, parent.silence(before)), append(f.pause, time.Duration(r.Pause)), append(f.all, time.Duration(r.Took))
	x.say("%d of %d children are ready after %v, the pause was at most %v", len(r.Children)-r.Failed(), len(r.Children), r.Took, r.Pause)
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

// silence returns the longest time between two numbers of the counter, from line n on.
func (t *terminal) silence(n int) (longest time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := max(n, 1); i < len(t.lines); i++ {
		longest = max(longest, t.lines[i].at.Sub(t.lines[i-1].at))
	}
	return longest
}
