package cure

import (
	"context"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/kfile"
)

// When a cure is broken off. Thresholds are judgements: what is meant is "more than
// before, and to be felt".
const (
	// watchEvery is between two looks, watchBefore how long it is looked before.
	watchEvery  = 100 * time.Millisecond
	watchBefore = 300 * time.Millisecond
	// stallShare is of the time that a whole group stands still for memory.
	stallShare = 0.20
	// failRate is of charges a second that hit a limit, where the kernel does
	// not tell who stands still.
	failRate = 1000
	// maxWatched bounds the groups that are looked at.
	maxWatched = 500
)

// watch looks after those who live in a control group. By PSI (memory.pressure,
// Documentation/accounting/psi.rst) where their groups have it, which on a hybrid
// host the unified tree may tell; else by the hits of limits. Both are of their
// own groups, in which this process is not: what it stalls itself while it
// reclaims does not count.
type watch struct {
	psi   []string // files
	fails []string
	last  map[string]float64
	at    time.Time
	usual map[string]float64 // rate before, by file
}

// newWatch looks for a moment how things are before.
func newWatch(ctx context.Context, h probe.Host, target cgroup.Group) *watch {
	w := &watch{usual: make(map[string]float64)}
	for _, m := range h.Groups {
		if m.V2 || (cgroup.Group{Controllers: m.Controllers}).Has("memory") {
			w.add(m.Group(target.Path), 0)
		}
	}
	w.rates()
	sleep(ctx, watchBefore)
	for f, r := range w.rates() {
		w.usual[f] = r
	}
	return w
}

// add takes a group in, and those below it.
func (w *watch) add(g cgroup.Group, depth int) {
	if len(w.psi)+len(w.fails) >= maxWatched || depth > 8 {
		return
	}
	if file := path.Join(g.Dir(), "memory.pressure"); depth > 0 && readable(file) {
		w.psi = append(w.psi, file)
	} else if file := path.Join(g.Dir(), "memory.failcnt"); readable(file) {
		w.fails = append(w.fails, file)
	}
	children, _ := g.Children() // one that cannot be read is not watched
	for _, c := range children {
		w.add(c, depth+1)
	}
}

func readable(file string) bool {
	_, err := kfile.Read(file, 4096)
	return err == nil
}

// rates are how fast each file's figure has grown since the last call: the share
// of the time, or hits a second.
func (w *watch) rates() map[string]float64 {
	now, was, rates := make(map[string]float64), w.last, make(map[string]float64)
	for _, f := range w.psi {
		if b, err := kfile.Read(f, 4096); err == nil {
			now[f] = fullStall(string(b))
		}
	}
	for _, f := range w.fails {
		if b, err := kfile.Read(f, 4096); err == nil {
			now[f], _ = strconv.ParseFloat(strings.TrimSpace(string(b)), 64)
		}
	}
	since := time.Since(w.at).Seconds()
	for f, v := range now {
		if before, ok := was[f]; ok && since > 0 {
			rates[f] = (v - before) / since
		}
	}
	w.last, w.at = now, time.Now()
	return rates
}

// fullStall is the total of a pressure file's line "full", in seconds.
func fullStall(text string) float64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "full "); ok {
			_, total, _ := strings.Cut(rest, "total=")
			v, _ := strconv.ParseFloat(strings.TrimSpace(total), 64)
			return v / 1e6
		}
	}
	return 0
}

// rising reports whether somebody suffers more than before.
func (w *watch) rising() bool {
	rates := w.rates()
	for _, f := range w.psi {
		if rates[f] > w.usual[f]+stallShare {
			return true
		}
	}
	for _, f := range w.fails {
		if rates[f] > 2*w.usual[f]+failRate {
			return true
		}
	}
	return false
}

// guarded runs f and breaks it off, by its context, with errPressure when those who
// live there begin to suffer, or with what check returns.
func (w *watch) guarded(ctx context.Context, every time.Duration, check func() error, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	tick := time.NewTicker(every)
	defer tick.Stop()
	pressed := time.Now()
	for {
		select {
		case err := <-ended:
			if cause := context.Cause(ctx); cause != nil && err != nil {
				return cause
			}
			return err
		case <-tick.C:
			if time.Since(pressed) >= watchEvery {
				pressed = time.Now()
				if w.rising() {
					cancel(errPressure)
				}
			}
			if err := check(); err != nil {
				cancel(err)
			}
		}
	}
}

// sleep waits, less where ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// pageSize is what limits are counted in.
func pageSize() int64 { return int64(os.Getpagesize()) }
