// Package restarts is the experiment of `holdfast bench restarts`: it restarts real servers
// under their own load tools, with `holdfast protect` and without, and counts the errors that
// the tools and the bench's own clients see.
//
// It runs in a network namespace of its own, on lo.
package restarts

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/bench"
	"holdfast/internal/platform/linux/deathsig"
	"holdfast/internal/platform/tasks"
	"holdfast/test/lab"
)

// The address of each server.
const (
	host    = "127.0.0.1"
	port    = "17000"
	address = host + ":" + port
)

// Options configures the experiment.
type Options struct {
	Rounds int      // restarts of each kind, with protect and without; at least 1
	Rate   float64  // the bench's own clients per second
	Only   []string // names of servers; none is all
	// Protect is the command line of `holdfast protect`.
	Protect  []string
	Progress io.Writer // a line for each row; nil is nowhere
}

// Check reports invalid values.
func (o Options) Check() error {
	switch {
	case o.Rounds < 1 || o.Rounds > 1000:
		return fmt.Errorf("rounds is %d, it must be 1 to 1000", o.Rounds)
	case !(o.Rate >= 1 && o.Rate <= 1000):
		return fmt.Errorf("the rate is %g, it must be 1 to 1000 clients per second", o.Rate)
	}
	for _, name := range o.Only {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("no server is called %q; the servers are %s", name, strings.Join(names(), ", "))
		}
	}
	return nil
}

// The changes, by the name of their script's part.
const (
	restart = "restart" // a regular stop, then a start
	reload  = "reload"
	kill    = "kill" // SIGKILL of all processes, then a start
)

const (
	toolRun    = 3 * time.Second // one run of a load tool
	before     = time.Second     // of load, before the change and after it
	stepLimit  = 5 * time.Minute // of one command of a script
	startLimit = 3 * time.Minute // until a server answers
	settle     = 3 * time.Second // between a change and the next: Envoy's old process ends after 2 s
)

// Run restarts the servers. It works inside a lab only (lab.Reenter).
func Run(ctx context.Context, o Options) (bench.Result, error) {
	if err := o.Check(); err != nil {
		return bench.Result{}, err
	}
	if !lab.Inside() {
		return bench.Result{}, errors.New("bench restarts works in a network namespace of its own only")
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("20000 65000"), 0); err != nil {
		return bench.Result{}, err
	}
	d := Details{Rounds: o.Rounds, Rate: o.Rate, Load: []float64{loadAverage()}}
	for _, s := range servers() {
		if len(o.Only) > 0 && !slices.Contains(o.Only, s.name) {
			continue
		}
		if p := s.missing(); p != "" {
			d.Servers = append(d.Servers, Server{Name: s.name, Missing: p})
			fmt.Fprintf(o.Progress, "%s: %s is not installed\n", s.name, p)
			continue
		}
		r, err := o.measure(ctx, s)
		if ctx.Err() != nil {
			return bench.Result{}, ctx.Err()
		}
		if err != nil { // the other servers are measured all the same
			r.Error = err.Error()
			fmt.Fprintf(o.Progress, "%s: %v\n", s.name, err)
		}
		d.Servers = append(d.Servers, r)
	}
	d.Load = append(d.Load, loadAverage())
	if !slices.ContainsFunc(d.Servers, func(s Server) bool { return s.Missing == "" }) {
		return bench.Result{}, holdfast.WithHint(errNoServers, "make bench-tools installs them")
	}
	return d.result(), nil
}

// loadAverage is the number of runnable tasks of the last minute (proc_loadavg(5)).
func loadAverage() (one float64) {
	b, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, _ = fmt.Sscan(string(b), &one)
	}
	return one
}

// running is a server of one run of the bench.
type running struct {
	server
	o   Options
	dir string
}

// measure makes all rows of a server.
func (o Options) measure(ctx context.Context, s server) (_ Server, err error) {
	x := running{server: s, o: o}
	r := Server{Name: s.name, Tool: s.tool, Reload: s.reload}
	if x.dir, err = os.MkdirTemp("", "holdfast-restarts-"); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(x.dir)) }()
	text, err := s.text()
	if err != nil {
		return r, err
	}
	if err := os.WriteFile(x.script(), []byte(text), 0o600); err != nil {
		return r, err
	}
	out, err := x.output(ctx, x.argv("version")...)
	if err != nil {
		return r, err
	}
	r.Version, _, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	if _, err := x.output(ctx, x.argv("prepare")...); err != nil {
		return r, err
	}
	if err := x.start(ctx); err != nil {
		return r, err
	}
	for _, change := range []string{restart, reload, kill} {
		if change == reload && s.reload == "" {
			continue
		}
		row := Row{Change: change}
		for range o.Rounds {
			for _, c := range []struct {
				cell      *Cell
				protected bool
			}{{&row.Without, false}, {&row.With, true}} {
				if err := x.round(ctx, change, c.protected, c.cell); err != nil {
					return r, fmt.Errorf("%s: %w", change, err)
				}
			}
		}
		fmt.Fprintf(o.Progress, "%s, %s: without: %s; with protect: %s\n", s.name, change, row.Without, row.With)
		r.Rows = append(r.Rows, row)
	}
	_, err = x.output(ctx, x.argv("stop")...)
	return r, err
}

func (x running) script() string { return filepath.Join(x.dir, "server.sh") }

func (x running) argv(part string) []string { return []string{"bash", x.script(), part} }

// start starts the server, and waits until it answers.
func (x running) start(ctx context.Context) error {
	if _, err := x.output(ctx, x.argv("start")...); err != nil {
		return err
	}
	return x.answers(ctx)
}

func (x running) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		err := x.ask(ctx, dial)
		if err == nil {
			return nil
		}
		if tasks.Sleep(ctx, 50*time.Millisecond) != nil {
			said, _ := os.ReadFile(filepath.Join(x.dir, "server.log"))
			return fmt.Errorf("it does not answer: %w: %s", err, said[max(0, len(said)-500):])
		}
	}
}

// round changes the server once under load, and adds to a cell what the clients saw.
func (x running) round(ctx context.Context, change string, protected bool, cell *Cell) error {
	stop := filepath.Join(x.dir, "stop")
	if err := os.Remove(stop); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	tool := x.command(ctx, x.argv("load")...)
	var out, errs bytes.Buffer
	tool.Stdout, tool.Stderr = &out, &errs
	ended, err := deathsig.Start(tool, unix.SIGKILL)
	if err != nil {
		return err
	}
	own := startClients(ctx, x.o.Rate, func(ctx context.Context) error { return x.ask(ctx, dial) })
	time.Sleep(before)
	took, err := x.change(ctx, change, protected)
	if err == nil {
		err = x.answers(ctx)
	}
	time.Sleep(before)
	cell.add(own.end())
	err = errors.Join(err, os.WriteFile(stop, nil, 0o600))
	if e := <-ended; e != nil {
		return errors.Join(err, fmt.Errorf("the load tool: %w: %s", e, errs.Bytes()))
	}
	if err != nil {
		return err
	}
	cell.Changes = append(cell.Changes, float64(took.Milliseconds()))
	time.Sleep(settle)
	return cell.Tool.add(out.String())
}

// change changes the server, and returns how long that took. A protected change that ends
// with an exit code, such as that of a server that is not ready, has failed.
func (x running) change(ctx context.Context, change string, protected bool) (time.Duration, error) {
	argv := x.argv(change)
	if protected {
		more := []string{"--json", "--timeout", "2m", "--port", port}
		if change == reload {
			more = append(more, "--overlap")
		}
		argv = slices.Concat(x.o.Protect, more, []string{"--"}, argv)
	}
	begun := time.Now()
	out, err := x.output(ctx, argv...)
	took := time.Since(begun)
	if protected && err == nil {
		var report struct{ Released struct{ Reason string } }
		if err := json.Unmarshal(out, &report); err != nil {
			return took, fmt.Errorf("decode protect's report: %w", err)
		}
	}
	return took, err
}

func (x running) command(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = x.dir
	cmd.Env = append(os.Environ(), "DIR="+x.dir, "HOST="+host, "PORT="+port, fmt.Sprintf("RUN=%.0f", toolRun.Seconds()),
		"PATH="+cmp.Or(os.Getenv("PATH"), "/usr/bin:/bin")+":"+strings.Join(places(), ":"))
	return cmd
}

// output runs a command to its end. Its outputs are files: a server that it starts may keep
// them open.
func (x running) output(ctx context.Context, argv ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	cmd := x.command(ctx, argv...)
	var files [2]*os.File
	for i, name := range []string{"out", "err"} {
		f, err := os.Create(filepath.Join(x.dir, name))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		files[i] = f
	}
	cmd.Stdout, cmd.Stderr = files[0], files[1]
	ran := cmd.Run()
	out, err := os.ReadFile(files[0].Name())
	if ran != nil {
		said, _ := os.ReadFile(files[1].Name()) // the error is told without it
		return out, fmt.Errorf("%s: %w: %.1000s", strings.Join(argv, " "), ran, said)
	}
	return out, err
}
