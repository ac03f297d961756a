package reload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/bench"
	"holdfast/test/lab"
)

// Sizes of the runs.
const (
	defaultRequests = 20000
	defaultRate     = 1000.0

	fullRequests = 1_000_000 // requests per run of Holdfast's best modes
	fullReloads  = 1501
	fullOthers   = 100_000
)

// Options configures the experiment. The zero value of a field selects its default.
type Options struct {
	Requests int     // of each run; 20,000
	Rate     float64 // clients that are due per second; 1000
	Modes    []Mode  // all
	// Full is the experiment in full: a million requests and over 1,500
	// reloads with Holdfast's best modes, 100,000 requests with the others.
	Full bool
	// HAProxy is the program; "" is Debian's.
	HAProxy string
	// Page is where the page with the plots is written; "" writes none.
	Page string
	// Protect is the command line of `holdfast protect`; required for the
	// modes that use it.
	Protect []string
	// Drain is protect's --drain; 0 is its default.
	Drain time.Duration
	// Idle measures instead the cost of an installed protection without reloads, in
	// pairs of loads.
	Idle  bool
	Pairs int // 30
	// Connections are the clients at once there, in a closed loop; 16.
	Connections int
	// WithKills measures instead the clients' waits when processes of a protect are
	// killed, Kills of each kind.
	WithKills bool
	// WithKeep measures instead the cost of a request on a connection that was kept over a
	// restart, Pairs times for each of Connections.
	WithKeep bool
	Kills    int       // 25
	Progress io.Writer // a line for each run; nil is nowhere
}

func (o *Options) complete() error {
	o.Requests, o.Rate = cmp.Or(o.Requests, defaultRequests), cmp.Or(o.Rate, defaultRate)
	o.Connections, o.Pairs, o.Kills = cmp.Or(o.Connections, 16), cmp.Or(o.Pairs, defaultPairs), cmp.Or(o.Kills, defaultKills)
	if len(o.Modes) == 0 {
		o.Modes = AllModes()
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o.Check()
}

// Check reports invalid values. Defaults must be filled in before: a zero is invalid.
func (o Options) Check() error {
	switch {
	case o.Idle && o.WithKills, o.WithKeep && (o.Idle || o.WithKills), (o.Idle || o.WithKills || o.WithKeep) && o.Full:
		return errors.New("idle, kills, keep and full exclude each other")
	case o.Pairs < 0 || o.Pairs > 10_000 || o.Kills < 0 || o.Kills > 10_000:
		return fmt.Errorf("%d pairs and %d kills: each can be at most 10000", o.Pairs, o.Kills)
	case o.Drain < 0:
		return fmt.Errorf("the drain is %v, it must be 0 or more", o.Drain)
	case o.Connections < 0 || o.Connections > maxOpen:
		return fmt.Errorf("%d connections: the limit is %d", o.Connections, maxOpen)
	case o.Requests < 1 || o.Requests > 100_000_000:
		return fmt.Errorf("requests is %d, it must be 1 to 100 million", o.Requests)
	case !(o.Rate >= 1 && o.Rate <= 100_000): // also NaN
		return fmt.Errorf("the rate is %g, it must be 1 to 100000 clients a second", o.Rate)
	case float64(o.Requests)/o.Rate > math.MaxUint32/2e6:
		return fmt.Errorf("%d requests at %g a second take too long", o.Requests, o.Rate)
	}
	for _, m := range o.Modes {
		if !slices.Contains(AllModes(), m) {
			return fmt.Errorf("no mode is called %q; the modes are %s", m, joined(AllModes()))
		}
	}
	return nil
}

func joined(modes []Mode) string {
	var names []string
	for _, m := range modes {
		names = append(names, string(m))
	}
	return strings.Join(names, ", ")
}

// Measure runs the experiment. It works inside a lab only (lab.Reenter).
func Measure(ctx context.Context, o Options) (_ bench.Result, err error) {
	if err := o.complete(); err != nil {
		return bench.Result{}, err
	}
	if !lab.Inside() {
		return bench.Result{}, errors.New("bench reload works in a network namespace of its own only")
	}
	page, err := o.createPage() // before the time is spent
	if err != nil {
		return bench.Result{}, err
	}
	if page != nil {
		defer func() { err = errors.Join(err, page.Close()) }()
	}
	if err := prepareHost(); err != nil {
		return bench.Result{}, err
	}
	s, err := newStack(ctx, o.HAProxy)
	if err != nil {
		return bench.Result{}, err
	}
	x := &experiment{o: o, stack: s}
	defer func() { err = errors.Join(err, s.stop()) }()
	switch {
	case o.Idle:
		return x.measureIdle(ctx)
	case o.WithKills:
		return x.measureKills(ctx)
	case o.WithKeep:
		return x.measureKeep(ctx)
	}
	d := Details{Rate: o.Rate}
	if d.HAProxy, err = s.version(ctx); err != nil {
		return bench.Result{}, err
	}
	for _, r := range x.plan() {
		if err := x.run(ctx, r); err != nil {
			return bench.Result{}, fmt.Errorf("%s: %w", r.Name(), err)
		}
		d.Runs = append(d.Runs, r)
	}
	res := d.result()
	if page != nil {
		if err := writePage(page, res, d); err != nil {
			return res, fmt.Errorf("write %s: %w", o.Page, err)
		}
		res.Notes = append(res.Notes, "plots of the waits over time: "+o.Page)
	}
	return res, nil
}

func (o Options) createPage() (*os.File, error) {
	if o.Page == "" || o.Idle || o.WithKills || o.WithKeep {
		return nil, nil // which have no plots
	}
	f, err := os.Create(o.Page)
	if err != nil {
		return nil, holdfast.WithHint(fmt.Errorf("create the page: %w", err), "--html says where it goes; --html '' writes none")
	}
	return f, nil
}

// openFiles is enough for HAProxy's connections to both sides.
const openFiles = 20_000

// prepareHost raises this process's limit of open files, which the servers have
// too, and gives the namespace's clients more ports than a host's usual ones.
func prepareHost() error {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	if files.Cur < openFiles {
		files.Cur, files.Max = openFiles, max(files.Max, openFiles)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
			return holdfast.WithHint(fmt.Errorf("raise the limit of open files to %d: %w", openFiles, err), "ulimit -n shows it; a container's is set where it is started")
		}
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("20000 65000"), 0)
}

// experiment is one call of Measure.
type experiment struct {
	o     Options
	stack *stack
}

// plan is the runs, in their order.
func (x *experiment) plan() []*Run {
	var runs []*Run
	for _, c := range []Change{Reload, Restart} {
		for _, m := range AllModes() {
			if !slices.Contains(x.o.Modes, m) || !m.does(c) {
				continue
			}
			r := &Run{Mode: m, Change: c, least: x.o.Requests, leastChanges: 1}
			switch {
			case x.o.Full && c == Reload && m.ours():
				r.least, r.leastChanges = max(fullRequests, r.least), fullReloads
			case x.o.Full:
				r.least = max(fullOthers, r.least)
			}
			runs = append(runs, r)
		}
	}
	return runs
}

// settle is the time between the servers' start and the load.
const settle = 300 * time.Millisecond

// run makes one run, with an HAProxy of its own.
func (x *experiment) run(ctx context.Context, r *Run) (err error) {
	if err := x.stack.killProxies(); err != nil {
		return err
	}
	if err := x.stack.startHAProxy(ctx); err != nil {
		return err
	}
	w := r.way(x)
	if r.Skipped, err = w.begin(ctx); err != nil {
		return err
	}
	if r.Skipped != "" {
		fmt.Fprintf(x.o.Progress, "%s: %s\n", r.Name(), r.Skipped)
		return nil
	}
	if i, ok := w.(installed); ok {
		defer func() { err = errors.Join(err, i.uninstall(context.WithoutCancel(ctx))) }()
	}
	time.Sleep(settle)
	if err := x.measure(ctx, r, w); err != nil {
		return err
	}
	fmt.Fprintf(x.o.Progress, "%s: %d requests, %d failed, longest %.1f ms, %d reloads, the longest %.1f ms\n",
		r.Name(), r.Requests, r.Failed, r.Max, r.Changes, r.LongestChange)
	return nil
}
