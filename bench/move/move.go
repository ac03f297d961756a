// Package move is the experiment of `holdfast-bench move`: sessions under gVisor move to
// another node with their memory, and each client keeps one WebSocket. Three agents run
// on one machine, with directories and addresses of their own, one etcd and one container
// engine. Two agents run sessions, the third is the gateway of the clients.
//
// A session serves a shell. Its client sets a variable and starts a counter. After each
// move the client checks both.
package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"holdfast"
	"holdfast/bench"
	"holdfast/bench/rig"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/platform/runsc"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/pool/container"
	"holdfast/test/lab"
)

// RoleShell is the role of the program in the containers of sessions: it runs Shell.
const RoleShell = "bench-move-shell"

// Options select the measurements.
type Options struct {
	// Program is a static build of holdfast. Bench is a static build of holdfast-bench,
	// which runs RoleShell; "" is the running program.
	Program, Bench string
	// Member is the command of an etcd member; see rig.Member.
	Member []string
	// Runsc is gVisor's runsc. "" is the one that packaging/dev/runsc.sh built, or else the
	// one in /usr/local/bin.
	Runsc    string
	Dockerd  string        // directory of another engine, as for lab.Options.With
	Network  string        // of the sessions, as in a template; "" is bridge, the engine's own
	N        int           // moves of a small session, and cold boots; 0 is 20
	Large    int           // moves and resumes of a session of 256 MiB; 0 is none
	Many     int           // sessions of 30 MiB that are drained at once; 0 is none
	Forks    int           // forks of a session of 64 MiB; 0 is none
	Children int           // of each fork; 0 is 20
	Warm     int           // sandboxes that wait on each node for the memory of a fork's children; at most 2 for other sessions
	Notice   time.Duration // of that drain; 0 is 30s
	Progress io.Writer     // progress lines; nil discards them
}

// Check returns an error for impossible options. It does not accept a zero that means a
// default.
func (o Options) Check() error {
	switch {
	case o.N < 1:
		return fmt.Errorf("the number of moves is %d, it must be at least 1", o.N)
	case o.Large < 0:
		return fmt.Errorf("moves of a large session are %d, they cannot be under 0", o.Large)
	case o.Many < 0 || o.Many > 200:
		return fmt.Errorf("sessions that are drained at once are %d, they have to be 0 to 200", o.Many)
	case o.Forks < 0 || o.Children < 0 || o.Children > holdfast.MaxForks:
		return fmt.Errorf("forks are %d with %d children, there have to be 0 or more with at most %d", o.Forks, o.Children, holdfast.MaxForks)
	case o.Warm < 0 || o.Warm > container.MaxSize:
		return fmt.Errorf("sandboxes that wait are %d, they have to be 0 to %d", o.Warm, container.MaxSize)
	case o.Notice <= 0:
		return fmt.Errorf("the notice is %v, it has to be over 0", o.Notice)
	}
	_, err := o.findRunsc()
	return err
}

func (o Options) findRunsc() (string, error) {
	if o.Runsc != "" {
		path, err := filepath.Abs(o.Runsc)
		if err != nil {
			return "", err
		}
		return path, rig.CheckRunsc(path)
	}
	const installed = "/usr/local/bin/runsc"
	if cache, err := os.UserCacheDir(); err == nil {
		if path := filepath.Join(cache, "holdfast-test", "runsc", "runsc"); rig.CheckRunsc(path) == nil {
			return path, nil
		}
	}
	return installed, rig.CheckRunsc(installed)
}

// Run measures moves of a small session, alternating with cold boots of its template,
// then moves and resumes of a large session, then forks, then a drain of many sessions within the notice. It
// must run inside a lab (lab.Reenter).
//
// Score is the p50 of the cold boots divided by the p50 of the small session's moves.
// Failed counts lost memories and broken sockets.
func Run(ctx context.Context, o Options) (_ bench.Result, err error) {
	o.Bench, o.N, o.Notice = cmp.Or(o.Bench, "/proc/self/exe"), cmp.Or(o.N, 20), cmp.Or(o.Notice, 30*time.Second)
	o.Children, o.Network = cmp.Or(o.Children, 20), cmp.Or(o.Network, "bridge")
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if err := o.Check(); err != nil {
		return bench.Result{}, err
	}
	x := &experiment{o: o, began: time.Now()}
	defer func() { err = errors.Join(err, x.close()) }()
	if err := x.prepare(ctx); err != nil {
		return bench.Result{}, x.fleet.Told(err)
	}
	r, err := x.run(ctx)
	return r, x.fleet.Told(err)
}

// experiment is one run.
type experiment struct {
	o       Options
	began   time.Time
	memory  string // directory in memory, for images
	runtime runsc.Runtime
	lab     *lab.Engine
	engine  engine.Engine
	fleet   *rig.Fleet
	watch   *observer
	nodes   []*node

	failures []string // lost memories and broken sockets
}

func (x *experiment) say(format string, args ...any) {
	fmt.Fprintf(x.o.Progress, "%6.1fs  %s\n", time.Since(x.began).Seconds(), fmt.Sprintf(format, args...))
}

// prepare starts engine, etcd and nodes.
func (x *experiment) prepare(ctx context.Context) (err error) {
	program, err := x.o.findRunsc()
	if err != nil {
		return err
	}
	x.memory = filepath.Join("/run", "bench-move") // the lab's own, in memory
	x.runtime = runsc.Runtime{Program: program, Images: filepath.Join(x.memory, "images")}
	script := filepath.Join(x.memory, "runtime")
	if err := os.MkdirAll(x.runtime.Images, 0o700); err != nil {
		return err
	}
	if err := x.runtime.Install(script); err != nil {
		return err
	}
	if x.lab, err = lab.StartEngine(ctx, lab.Options{Args: []string{"--add-runtime=" + runtimeName + "=" + script}}.With(x.o.Dockerd)); err != nil {
		return err
	}
	if err := x.load(ctx); err != nil {
		return err
	}
	if x.engine, err = docker.Open(ctx, docker.Config{Host: x.lab.Host()}); err != nil {
		return err
	}
	if x.fleet, err = rig.StartFleet(ctx, x.lab.Scratch(), x.o.Member); err != nil {
		return err
	}
	if x.watch, err = newObserver(ctx); err != nil {
		return err
	}
	return x.startNodes(ctx, script)
}

// load creates the image of the sessions: this program and a shell.
func (x *experiment) load(ctx context.Context) error {
	img, err := lab.Busybox()
	if err != nil {
		return err
	}
	self, err := lab.Binary(image, x.o.Bench, RoleShell)
	if err != nil {
		return err
	}
	for name, file := range self.Files {
		img.Files[name] = file
	}
	img.Ref, img.Command = self.Ref, self.Command
	return x.lab.Import(ctx, img)
}

func (x *experiment) startNodes(ctx context.Context, script string) error {
	for n := range 3 {
		m, err := x.newNode(n+1, script)
		if err == nil {
			err = m.Boot(ctx)
		}
		if err != nil {
			return err
		}
	}
	if err := x.gateway().API.Cordon(ctx, ""); err != nil {
		return err
	}
	x.say("three agents serve")
	return x.known(ctx, func(n holdfast.Node) bool { return n.Draining == (n.ID == x.gateway().ID) })
}

// The nodes. The first two run sessions, and clients connect to the third.
func (x *experiment) hosts() []*node { return x.nodes[:2] }
func (x *experiment) gateway() *node { return x.nodes[2] }

// known waits until the record of every node satisfies ok, and all other nodes have had
// time to read it.
func (x *experiment) known(ctx context.Context, ok func(holdfast.Node) bool) error {
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	for {
		list, err := x.watch.store.Nodes(ctx)
		if err == nil && len(list) == len(x.nodes) && !slices.ContainsFunc(list, func(n holdfast.Node) bool { return !ok(n) }) {
			return tasks.Sleep(ctx, listAge)
		}
		if err := tasks.Sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d nodes are in etcd, not all as they should be: %w", len(list), len(x.nodes), err)
		}
	}
}

// listAge is the maximum age of a node's list of all nodes.
const listAge = 1100 * time.Millisecond

// close kills all processes and removes all files.
func (x *experiment) close() error {
	var errs []error
	if x.watch != nil {
		errs = append(errs, x.watch.close())
	}
	x.fleet.Close()
	if x.engine != nil {
		errs = append(errs, x.engine.Close())
	}
	if x.lab != nil {
		errs = append(errs, x.lab.Stop())
	}
	if x.memory != "" {
		errs = append(errs, os.RemoveAll(x.memory))
	}
	return errors.Join(errs...)
}
