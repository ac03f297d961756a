package cure

import (
	"context"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/tasks"
)

// Thresholds for stopping a cure. They are judgements that mean "noticeably more than
// before".
const (
	// watchEvery is the interval of the checks, watchBefore the duration of the
	// measurement before the cure.
	watchEvery  = 100 * time.Millisecond
	watchBefore = 300 * time.Millisecond
	// stallShare is a share of the time for which a whole group stalls on memory.
	stallShare = 0.20
	// failRate is the number of charges per second that hit a limit, used if the kernel
	// does not report stalls.
	failRate = 1000
	// maxWatched bounds the number of groups that are watched.
	maxWatched = 500
	// maxSwapped is how many bytes of the group's memory a cure may move to swap space.
	maxSwapped = 16 << 20
)

// watch monitors the processes in a control group. It uses PSI (memory.pressure,
// Documentation/accounting/psi.rst) if their groups have it; on a hybrid host the unified
// tree may. Otherwise it uses hits of limits. Both are figures of their own groups, which
// do not include this process, so its own stalls during the reclaim do not count.
type watch struct {
	psi   []string // files
	fails []string
	last  map[string]float64
	at    time.Time
	usual map[string]float64 // rate before the cure, by file

	target  cgroup.Group
	swapped int64 // bytes in swap space before the cure; without swap accounting NoLimit
}

// newWatch measures the normal rates for a short time.
func newWatch(ctx context.Context, h probe.Host, target cgroup.Group) *watch {
	w := watchSwap(target)
	for _, m := range h.Groups {
		if m.V2 || m.Group("/").Has("memory") {
			_ = m.Group(target.Path).Walk(w.add) // unreadable groups are not watched
		}
	}
	w.rates()
	_ = tasks.Sleep(ctx, watchBefore)
	for f, r := range w.rates() {
		w.usual[f] = r
	}
	return w
}

// watchSwap returns a watch of a group's swap space only.
func watchSwap(target cgroup.Group) *watch {
	w := &watch{usual: make(map[string]float64), target: target, swapped: cgroup.NoLimit}
	if n, err := target.Swapped(); err == nil {
		w.swapped = n
	}
	return w
}

// swaps reports whether much of the group's memory has been moved to swap space. A reclaim asks
// for memory of all kinds, and the group's processes would later wait for the disk.
func (w *watch) swaps() bool {
	now, err := w.target.Swapped()
	return err == nil && now-w.swapped > maxSwapped
}

// add adds a group. It is for Walk.
func (w *watch) add(g cgroup.Group, depth int) error {
	if len(w.psi)+len(w.fails) >= maxWatched || depth > 8 {
		return fs.SkipDir
	}
	if file := path.Join(g.Dir(), "memory.pressure"); depth > 0 && readable(file) {
		w.psi = append(w.psi, file)
	} else if file := path.Join(g.Dir(), "memory.failcnt"); readable(file) {
		w.fails = append(w.fails, file)
	}
	return nil
}

func readable(file string) bool {
	_, err := kfile.Read(file, 4096)
	return err == nil
}

// rates returns the growth of each file's figure since the last call: as a share of the
// time, or hits per second.
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

// fullStall returns the total of the line "full" of a pressure file, in seconds.
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

// rising reports whether a group stalls more than before the cure.
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

// guarded runs f. It cancels f's context with errPressure when the processes in the group
// begin to stall, with errSwap when their memory moves to swap space, or with the error of
// check.
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
			if w.swaps() {
				cancel(errSwap)
			}
			if err := check(); err != nil {
				cancel(err)
			}
		}
	}
}

// pageSize returns the unit of limits in bytes.
func pageSize() int64 { return int64(os.Getpagesize()) }
