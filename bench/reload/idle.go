package reload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"holdfast/bench"
)

// Sizes of the experiment without reloads.
const (
	defaultPairs = 30
	// idleSpan is the length of each of a pair's four loads. It is short, because the
	// machine's other load changes from one second to the next.
	idleSpan = 500 * time.Millisecond
	// idleSettle is the time that a process gets to start or to end.
	idleSettle = 500 * time.Millisecond
	// begins is the number of holds with and without the installed port, at most one
	// for each pair.
	begins = 10
	// worth is the minimum share of the throughput that an installed protection must leave.
	worth = 0.97
)

// measureIdle measures requests per second with a port installed and without, in
// turns on the same servers, and how much sooner a hold begins.
func (x *experiment) measureIdle(ctx context.Context) (bench.Result, error) {
	d := IdleDetails{Connections: x.o.Connections, Seconds: idleSpan.Seconds()}
	var err error
	if d.HAProxy, err = x.stack.version(ctx); err != nil {
		return bench.Result{}, err
	}
	for _, m := range x.o.Modes {
		if !m.protects() {
			continue
		}
		r := &IdleRun{Mode: m}
		if err := x.idle(ctx, r); err != nil {
			return bench.Result{}, fmt.Errorf("%s: %w", m, err)
		}
		d.Runs = append(d.Runs, r)
	}
	return d.result(), nil
}

// protects reports whether a mode is a backend of protect.
func (m Mode) protects() bool { return slices.Contains([]Mode{Park, NFQueue, Migrate, Plug}, m) }

func (x *experiment) idle(ctx context.Context, r *IdleRun) error {
	p := &protected{x: x, backend: string(r.Mode), run: &Run{}}
	why, err := p.begin(ctx)
	if err != nil || why != "" {
		r.Skipped = why
		return err
	}
	if _, _, err := x.throughput(ctx, r); err != nil { // to warm up
		return err
	}
	for i := range x.o.Pairs {
		pair, err := x.pair(ctx, p, r, i%2 == 1)
		if err != nil {
			return err
		}
		r.Pairs = append(r.Pairs, pair)
	}
	if r.alone, err = p.beginsToHold(ctx); err != nil {
		return err
	}
	if err := p.install(ctx); err != nil {
		return err
	}
	r.installed, err = p.beginsToHold(ctx)
	if err = errors.Join(err, p.uninstall(ctx)); err != nil {
		return err
	}
	r.sum()
	fmt.Fprintf(x.o.Progress, "%s: %d pairs, with ÷ without %.3f (%.3f to %.3f), CPU %.3f, %d of %d failed; holds after %.1f ms, installed after %.1f ms\n",
		r.Mode, len(r.Pairs), r.Ratio, r.From, r.To, r.CPU, r.Failed, r.Requests, r.Alone, r.Installed)
	return nil
}

// pair measures both twice, with the installed port first and last, or in between.
// This order cancels out a machine that gets steadily slower or faster.
func (x *experiment) pair(ctx context.Context, p *protected, r *IdleRun, outside bool) (pair Pair, err error) {
	installed := false
	defer func() {
		if installed {
			err = errors.Join(err, p.uninstall(ctx))
		}
	}()
	for _, want := range []bool{outside, !outside, !outside, outside} {
		if want != installed {
			change := p.uninstall
			if want {
				change = p.install
			}
			if err := change(ctx); err != nil {
				return pair, err
			}
			installed = want
			time.Sleep(idleSettle)
		}
		rate, cpu, err := x.throughput(ctx, r)
		if err != nil {
			return pair, err
		}
		if want {
			pair.With += rate / 2
			pair.CPUWith += cpu / 2
		} else {
			pair.Without += rate / 2
			pair.CPUWithout += cpu / 2
		}
	}
	return pair, nil
}

// throughput runs a closed loop of clients. It returns the answers per second and the
// CPU time of each in microseconds.
func (x *experiment) throughput(ctx context.Context, r *IdleRun) (rate, cpu float64, err error) {
	pids, err := x.stack.pids()
	if err != nil {
		return 0, 0, err
	}
	before, err := cpuTime(pids)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	rec, err := load{
		to: frontAddress, answer: pong, conns: x.o.Connections, limit: clientLimit,
		more: func(int) bool { return time.Since(began) < idleSpan },
	}.run(ctx)
	if err != nil {
		return 0, 0, err
	}
	after, err := cpuTime(pids)
	if err != nil {
		return 0, 0, err
	}
	failed, _ := rec.failed()
	r.Requests += len(rec.requests)
	r.Failed += failed
	answered := float64(len(rec.requests) - failed)
	if answered == 0 {
		return 0, 0, errors.New("no client was answered")
	}
	return answered / rec.took.Seconds(), float64((after - before).Microseconds()) / answered, nil
}

// pids are the servers' processes, and this one, which has the clients.
func (s *stack) pids() ([]int, error) {
	pids, err := s.proxies()
	pids = append(pids, os.Getpid(), s.nginx.Process.Pid)
	if err == nil {
		err = processes(func(pid, parent int, _ []string) {
			if parent == s.nginx.Process.Pid { // nginx's workers
				pids = append(pids, pid)
			}
		})
	}
	return pids, err
}

// cpuTime returns the CPU time of all threads of the processes so far: the first field
// of their schedstat, in nanoseconds (Documentation/scheduler/sched-stats.rst).
func cpuTime(pids []int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil {
			return 0, err
		}
		for _, file := range threads {
			b, err := os.ReadFile(file)
			if err != nil {
				continue // the thread has just ended
			}
			var ran int64
			if _, err := fmt.Sscan(string(b), &ran); err != nil {
				return 0, fmt.Errorf("read %s: %w", file, err)
			}
			sum += time.Duration(ran)
		}
	}
	return sum, nil
}

// installing returns a command line about installed ports. It writes no record,
// because the host has its own.
func (p *protected) installing(ctx context.Context, words ...string) error {
	argv := append(append([]string(nil), p.x.o.Protect...), words...)
	return p.x.stack.command(ctx, append(argv, "--record", "")...)
}

func (p *protected) install(ctx context.Context) error {
	return p.installing(ctx, "install", "--backend", p.backend, "--port", fmt.Sprint(frontAddress.Port()))
}

func (p *protected) uninstall(ctx context.Context) error { return p.installing(ctx, "uninstall") }

// beginsToHold returns the times until protects held, in milliseconds.
func (p *protected) beginsToHold(ctx context.Context) (took []float64, err error) {
	nothing, err := exec.LookPath("true")
	if err != nil {
		return nil, err
	}
	for range min(begins, p.x.o.Pairs) {
		out, err := p.x.stack.output(ctx, p.argv(Reload, "--", nothing)...)
		if err != nil {
			return nil, err
		}
		var report struct {
			Steps []struct {
				Name string
				Took time.Duration `json:"took_ns"`
			}
		}
		if err := json.Unmarshal(out, &report); err != nil {
			return nil, fmt.Errorf("decode protect's report: %w", err)
		}
		var until time.Duration
		for _, s := range report.Steps {
			if s.Name == "prepare" || s.Name == "hold" {
				until += s.Took
			}
		}
		took = append(took, millis(until))
	}
	return took, nil
}
