// Package sleep is the experiment of `holdfast-bench sleep`: clients keep WebSockets to one
// session open, which sleeps between their messages. The messages are numbered, and the
// session's server echoes them.
package sleep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/bench"
	"holdfast/bench/rig"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/platform/runsc"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/pool/container"
	"holdfast/test/lab"
)

// Options select the measurements.
type Options struct {
	Sleeps  int // 0 is 100
	Sockets int // 0 is 1000
	// Keep is the template's websocket: keep.
	Keep bool
	// Runsc is the path of gVisor's runsc, under which the session is suspended, with
	// websocket: keep. With "" it is frozen.
	Runsc string
	// Warm is how many sandboxes wait for the session's memory. It needs Runsc.
	Warm int
	// Sessions, if it is not 0, measures instead the memory of a host on which so many
	// sessions are suspended. It needs Runsc.
	Sessions int
	// Program is a build of holdfast. Server is the role of the running program in the
	// container of the session: a server that echoes on :8080.
	Program, Server string
	Progress        io.Writer // progress lines; nil discards them
}

// Check returns an error for impossible options. It does not accept a zero that means a
// default.
func (o Options) Check() error {
	switch {
	case o.Sleeps < 1:
		return fmt.Errorf("sleeps are %d, there has to be one at least", o.Sleeps)
	case o.Sockets < 1 || o.Sockets > 20000:
		return fmt.Errorf("sockets are %d, they have to be 1 to 20000", o.Sockets)
	case o.Sessions < 0 || o.Sessions > maxSessions:
		return fmt.Errorf("sessions are %d, they have to be 0 to %d", o.Sessions, maxSessions)
	case o.Warm < 0 || o.Warm > container.MaxSize:
		return fmt.Errorf("sandboxes that wait are %d, they have to be 0 to %d", o.Warm, container.MaxSize)
	case (o.Sessions > 0 || o.Warm > 0) && o.Runsc == "":
		return errors.New("suspended sessions need --runsc")
	}
	if o.Runsc != "" {
		return rig.CheckRunsc(o.Runsc)
	}
	return nil
}

const (
	image = "bench-sleep:latest"
	key   = "s"
	after = time.Second // the template's sleep.after
	// poll is the time between two looks at the session.
	poll = 20 * time.Millisecond
	// maxSessions keeps the images below moving.suspended.space.
	maxSessions = 2000
	// restTime is how long the session sleeps before the agent's memory is measured: the
	// runtime of Go collects garbage every two minutes, and returns memory after that.
	restTime = 3 * time.Minute
)

// Run measures, on one node, the time until the first echo from a session that sleeps,
// beside that from one that is awake. After each first echo every socket sends a message.
// It must run inside a lab (lab.Reenter). With Options.Sessions it measures a host's memory
// instead: see experiment.host.
//
// Score is the p50 of the echo of the awake session divided by that of the sleeping one.
// Failed counts the messages that were lost, doubled or out of order.
func Run(ctx context.Context, o Options) (_ bench.Result, err error) {
	o.Sleeps, o.Sockets = cmp.Or(o.Sleeps, 100), cmp.Or(o.Sockets, 1000)
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if err := o.Check(); err != nil {
		return bench.Result{}, err
	}
	x := &experiment{o: o}
	defer func() { err = errors.Join(err, x.close()) }()
	if err := x.prepare(ctx); err != nil {
		return bench.Result{}, err
	}
	if o.Sessions > 0 {
		return x.host(ctx)
	}
	return x.run(ctx)
}

// experiment is one run.
type experiment struct {
	o       Options
	dir     string
	lab     *lab.Engine
	engine  engine.Engine
	agent   *rig.Process
	api     *client.Client
	gateway string // host:port
	metrics string // host:port
	sockets []*socket
	woken   []float64 // ms until the echo of a session that slept
	awake   []float64 // ms, of one that did not
	memory  []float64 // MB of the container while it sleeps, or of its image
	resumes []float64 // ms from the claim of a suspended session until it is ready
	asleep  float64   // bytes of the agent after restTime in which the session has slept
	failed  int
	refused atomic.Int64 // boots that failed, of many sessions
}

// prepare starts engine and agent.
func (x *experiment) prepare(ctx context.Context) (err error) {
	if x.dir, err = os.MkdirTemp("", "holdfast-bench-"); err != nil {
		return err
	}
	var options lab.Options
	memory := filepath.Join("/run", "bench-sleep") // the lab's own, in memory
	boxed := runsc.Runtime{Program: x.o.Runsc, Images: filepath.Join(memory, "images")}
	script := filepath.Join(memory, "runtime")
	if x.o.Runsc != "" {
		options.Args = []string{"--add-runtime=boxed=" + script}
		if err := errors.Join(os.MkdirAll(boxed.Images, 0o700), boxed.Install(script)); err != nil {
			return err
		}
	}
	if x.lab, err = lab.StartEngine(ctx, options); err != nil {
		return err
	}
	img, err := lab.SelfImage(image, x.o.Server)
	if err == nil {
		err = x.lab.Import(ctx, img)
	}
	if err != nil {
		return err
	}
	if x.engine, err = docker.Open(ctx, docker.Config{Host: x.lab.Host()}); err != nil {
		return err
	}
	if x.gateway, err = lab.FreePort(); err != nil {
		return err
	}
	if x.metrics, err = lab.FreePort(); err != nil {
		return err
	}
	websocket, more := "close", ""
	if x.o.Keep || x.o.Runsc != "" {
		websocket = "keep"
	}
	if x.o.Runsc != "" {
		more = fmt.Sprintf("    runtime: boxed\n    handover: memory\n    warm: %d\nmoving: {runsc: %s, runtime: %s, staged: %s}\n", x.o.Warm, x.o.Runsc, script, boxed.Images)
	}
	config := filepath.Join(x.dir, "holdfast.yaml")
	text := fmt.Sprintf(`
node: bench-sleep
data_dir: %[1]s/data
run_dir: %[1]s/run
engine: {host: %[2]q}
gateway: {listen: %[3]q, boots_per_client: 0}
api: {socket: %[1]s/run/s, listen: %[8]q}
doctor: {enabled: false}
templates:
  - name: bench
    image: %[4]q
    port: 8080
    ready: {http: /healthz, timeout: 30s}
    websocket: %[5]s
    sleep: {after: %[6]v, idle_by: data}
%[7]s`, x.dir, x.lab.Host(), x.gateway, image, websocket, after, more, x.metrics)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	if x.api, err = client.New(client.Options{Socket: filepath.Join(x.dir, "run", "s")}); err != nil {
		return err
	}
	if x.agent, err = rig.Start("agent", []string{x.o.Program, "agent", "--config", config}, filepath.Join(x.dir, "log"), rig.Nice, false); err != nil {
		return err
	}
	return x.until(ctx, "the agent serves", poll, func(ctx context.Context) bool { return x.api.Ready(ctx) == nil })
}

// until waits for a state, at which it looks every so often.
func (x *experiment) until(ctx context.Context, what string, every time.Duration, is func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	for !is(ctx) {
		select {
		case <-time.After(every):
		case <-x.agent.Ended:
			return fmt.Errorf("the agent has ended:\n%s", x.agent.Tail())
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w\n%s", what, ctx.Err(), x.agent.Tail())
		}
	}
	return nil
}

// resident is the agent's memory in bytes.
func (x *experiment) resident() (float64, error) {
	_, n, err := bench.ProcessUsage(x.agent.PID())
	return float64(n), err
}

func (x *experiment) run(ctx context.Context) (bench.Result, error) {
	info, err := x.engine.Info(ctx)
	if err != nil {
		return bench.Result{}, err
	}
	if _, err := x.api.StartSession(ctx, key, ""); err != nil {
		return bench.Result{}, err
	}
	before, err := x.resident()
	if err != nil {
		return bench.Result{}, err
	}
	if err := x.connect(ctx); err != nil {
		return bench.Result{}, err
	}
	for i := range x.o.Sleeps {
		if i%10 == 0 {
			fmt.Fprintf(x.o.Progress, "%d of %d sleeps\n", i, x.o.Sleeps)
		}
		if err := x.cycle(ctx, i); err != nil {
			return bench.Result{}, err
		}
	}
	after, err := x.resident()
	if err == nil && x.o.Runsc != "" {
		err = x.rest(ctx)
	}
	if err != nil {
		return bench.Result{}, err
	}
	messages := x.messages()
	x.hangUp()
	r := bench.Result{Name: "sleep", Machine: bench.EngineMachine(info), Failed: x.failed}
	slept, awake := bench.NewRow("asleep: message to its echo", "ms", x.woken), bench.NewRow("awake: message to its echo", "ms", x.awake)
	r.Rows = []bench.Row{slept, awake}
	if x.o.Runsc == "" {
		r.Rows = append(r.Rows, bench.NewRow("container's memory while it sleeps", "MB", x.memory))
	} else {
		r.Rows = append(r.Rows, bench.NewRow("resume: claim until ready", "ms", x.resumes), bench.NewRow("image of the sleeping session", "MB", x.memory))
	}
	r.Score, r.Scale = awake.P50/slept.P50, "the echo of an awake session ÷ that of a sleeping one, p50"
	r.Notes = []string{
		fmt.Sprintf("%d sockets × %d sleeps, %d messages echoed; the agent grew by %.1f KB for each socket", x.o.Sockets, x.o.Sleeps, messages, (after-before)/float64(x.o.Sockets)/1e3),
	}
	if x.o.Runsc != "" {
		r.Notes = append(r.Notes, fmt.Sprintf("after %v asleep the agent's memory was larger by %.1f KB for each socket than without sockets", restTime, (x.asleep-before)/float64(x.o.Sockets)/1e3))
	}
	return r, nil
}

func (x *experiment) messages() (n int64) {
	for _, s := range x.sockets {
		n += s.sent
	}
	return n
}

// connect opens the sockets, some at a time.
func (x *experiment) connect(ctx context.Context) error {
	x.sockets = make([]*socket, x.o.Sockets)
	dials, dialing := errgroup.WithContext(ctx)
	dials.SetLimit(32)
	for i := range x.sockets {
		dials.Go(func() (err error) {
			x.sockets[i], err = dial(dialing, ctx, x.gateway, key)
			return err
		})
	}
	return dials.Wait()
}

// cycle waits for a sleep, ends it with a message, and lets every socket send one.
func (x *experiment) cycle(ctx context.Context, before int) error {
	if err := x.awaitSleep(ctx, before); err != nil {
		return err
	}
	first := x.sockets[rand.IntN(len(x.sockets))]
	for _, list := range []*[]float64{&x.woken, &x.awake} {
		begun := time.Now()
		if err := first.say(ctx); err != nil {
			return err
		}
		if err := first.await(ctx); err != nil {
			return err
		}
		*list = append(*list, float64(time.Since(begun).Microseconds())/1e3)
	}
	if x.o.Runsc != "" {
		s, err := x.api.Session(ctx, key)
		if err != nil {
			return err
		}
		x.resumes = append(x.resumes, float64(s.ReadyAt.Sub(s.ClaimedAt).Microseconds())/1e3)
	}
	for _, s := range x.sockets {
		if err := s.say(ctx); err != nil {
			return err
		}
	}
	for _, s := range x.sockets {
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// awaitSleep waits until the session sleeps, for the first time after so many sleeps.
func (x *experiment) awaitSleep(ctx context.Context, before int) error {
	var s api.Session
	err := x.until(ctx, "the session sleeps", poll, func(ctx context.Context) bool {
		var err error
		s, err = x.api.Session(ctx, key)
		if x.o.Runsc != "" {
			return err == nil && s.State == holdfast.IsSuspended
		}
		return err == nil && s.Sleep.Asleep() && s.Sleep.Sleeps > before && s.Sleep.Memory > 0
	})
	if err != nil {
		return err
	}
	if x.o.Runsc != "" {
		x.memory = append(x.memory, float64(s.Suspended.Bytes)/1e6)
	} else {
		x.memory = append(x.memory, float64(s.Sleep.Memory)/1e6)
	}
	return nil
}

// rest lets the session sleep for a while, and measures the agent's memory.
func (x *experiment) rest(ctx context.Context) (err error) {
	if err := x.awaitSleep(ctx, x.o.Sleeps); err != nil {
		return err
	}
	if err := x.pause(ctx); err != nil {
		return err
	}
	x.asleep, err = x.resident()
	return err
}

// pause waits for restTime.
func (x *experiment) pause(ctx context.Context) error {
	fmt.Fprintf(x.o.Progress, "asleep for %v\n", restTime)
	return tasks.Sleep(ctx, restTime)
}

// hangUp closes the sockets and counts wrong messages.
func (x *experiment) hangUp() {
	for _, s := range x.sockets {
		if s != nil {
			x.failed += s.end()
		}
	}
	x.sockets = nil
}

// close ends all processes and removes all files.
func (x *experiment) close() error {
	var errs []error
	x.hangUp()
	if x.agent != nil {
		errs = append(errs, x.agent.Terminate(rig.Patience))
	}
	if x.api != nil {
		x.api.Close()
	}
	if x.engine != nil {
		errs = append(errs, x.engine.Close())
	}
	if x.lab != nil {
		errs = append(errs, x.lab.Stop())
	}
	if x.dir != "" {
		errs = append(errs, os.RemoveAll(x.dir))
	}
	return errors.Join(errs...)
}
