package dashboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"holdfast/bench"
	"holdfast/internal/control/api"
	"holdfast/internal/control/dashboard"
)

// Options configures `holdfast bench dashboard`.
type Options struct {
	Nodes, Sessions int           // size of the generated fleet
	Loads           int           // loads of each page
	Open            int           // number of open pages with live updates
	For             time.Duration // time for which the pages stay open
	Progress        io.Writer     // receives progress lines; nil discards them
}

// Check reports invalid values.
func (o Options) Check() error {
	if o.Nodes < 1 || o.Sessions < 0 || o.Loads < 1 || o.Open < 1 || o.Open > 256 || o.For < time.Second {
		return fmt.Errorf("%d nodes (1 at least), %d sessions, %d loads (1 at least), %d open pages (1 to 256) for %v (1s at least)", o.Nodes, o.Sessions, o.Loads, o.Open, o.For)
	}
	return nil
}

// Run measures the pages of a generated fleet in which the load of every node changes
// each second: the size of a page with all that it loads, the server's time for a page,
// and the CPU time of live updates. The CPU time is that of this process, so it includes
// the clients' side.
//
// Score is 1 % of a core ÷ the share of a core that an open page takes.
func Run(ctx context.Context, o Options) (bench.Result, error) {
	if err := o.Check(); err != nil {
		return bench.Result{}, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	f := NewFleet(o.Nodes, o.Sessions, 1)
	log := slog.New(slog.DiscardHandler)
	access := api.Options{Admin: true, Log: log}
	d, err := dashboard.New(f.Source(), dashboard.Options{Access: access, API: http.NotFoundHandler(), Metrics: f.Metrics(), Log: log})
	if err != nil {
		return bench.Result{}, err
	}
	s := httptest.NewServer(d.Handler())
	defer s.Close()
	ctx, cancel := context.WithCancel(ctx)
	var running errgroup.Group
	running.Go(func() error { return d.Run(ctx) })
	running.Go(func() error { return f.changeEvery(ctx, time.Second) })
	r := bench.Result{Name: "dashboard", Machine: bench.ThisMachine(""), Scale: "1 % of a core ÷ what an open page takes; over 1 is within the bound"}
	err = measure(ctx, o, s.URL, &r)
	cancel()
	return r, errors.Join(err, running.Wait())
}

func (f *Fleet) changeEvery(ctx context.Context, every time.Duration) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			f.Change()
		}
	}
}

// measured lists the loaded pages. kept lists the streams that stay open.
func measured() []string {
	return []string{"/", "/sessions", "/slo", "/spinup", "/gc", "/protect", "/doctor"}
}

func kept() []string {
	return []string{"/live/fleet", "/live/sessions", "/live/slo", "/live/spinup", "/live/gc", "/live/protect", "/live/doctor"}
}

func measure(ctx context.Context, o Options, url string, r *bench.Result) error {
	for _, path := range measured() {
		fmt.Fprintf(o.Progress, "loading %s %d times\n", path, o.Loads)
		n, err := weight(ctx, url, path)
		if err != nil {
			return err
		}
		times := make([]float64, 0, o.Loads)
		for range o.Loads {
			began := time.Now()
			if _, err := get(ctx, url+path); err != nil {
				return err
			}
			times = append(times, float64(time.Since(began))/1e6)
		}
		r.Rows = append(r.Rows, bench.NewRow("size of "+path+" with its files", "KB", []float64{float64(n) / 1000}), bench.NewRow("time for "+path, "ms", times))
	}
	fmt.Fprintf(o.Progress, "%d pages are kept up to date for %v\n", o.Open, o.For)
	share, err := live(ctx, o, url)
	if err != nil {
		return err
	}
	r.Rows = append(r.Rows, bench.NewRow("an open page", "% of a core", []float64{100 * share}))
	r.Score = .01 / share
	return nil
}

// get returns a page.
func get(ctx context.Context, url string) ([]byte, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(q)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, res.Status)
	}
	return io.ReadAll(res.Body)
}

// weight returns the size in bytes of a page with all that a browser loads for it.
func weight(ctx context.Context, url, path string) (int, error) {
	page, err := get(ctx, url+path)
	if err != nil {
		return 0, err
	}
	n := len(page)
	for _, m := range regexp.MustCompile(`<(?:script src|link rel="[a-z]+" href)="([^"]+)"`).FindAllSubmatch(page, -1) {
		file, err := get(ctx, url+string(m[1]))
		if err != nil {
			return 0, err
		}
		n += len(file)
	}
	return n, nil
}

// live returns the share of a core that an open page takes.
func live(ctx context.Context, o Options, url string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, o.For)
	defer cancel()
	before, began := cpuTime(), time.Now()
	var pages errgroup.Group
	for i := range o.Open {
		path := kept()[i%len(kept())]
		pages.Go(func() error {
			_, err := get(ctx, url+path)
			if errors.Is(err, context.DeadlineExceeded) {
				return nil // the time is over
			}
			return err
		})
	}
	if err := pages.Wait(); err != nil {
		return 0, err
	}
	return float64(cpuTime()-before) / float64(time.Since(began)) / float64(o.Open), nil
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil { // RUSAGE_SELF is always valid
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
