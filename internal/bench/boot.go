package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/engine"
	"holdfast/internal/engine/docker"
	"holdfast/internal/lab"
)

// BootOptions say how `holdfast bench boot` measures.
type BootOptions struct {
	N int // boots of each kind; 0 is 50
	// Agent is the command of an agent: this program's own, with the
	// argument agent; --config FILE is added.
	Agent []string
	// Server is the command of a session's server on :8080 in an image made
	// of this program: testserver.
	Server   []string
	Progress io.Writer // a line now and then; nil is nowhere
}

// Check reports what cannot be; a zero that stands for a default cannot either.
func (o BootOptions) Check() error {
	if o.N < 1 {
		return fmt.Errorf("boots are %d, there has to be one at least", o.N)
	}
	return nil
}

// Names of the rows.
const (
	rowEngineBoot  = "engine: create + start"
	rowSessionBoot = "session: request to first byte"
)

const (
	bootImage   = "bench-session:latest"
	bootPort    = 8080
	bootWarmups = 3 // of each kind, not counted
	bootLimit   = time.Minute
)

// Boot measures, in turns, the engine's own create and start of a container,
// and a whole session from the request at the gateway to the first byte of its
// answer: claim, create, start, readiness and proxy, by an agent in a process
// of its own with an embedded store. Both are the same container from the same
// image on the same network. It works inside a lab only (lab.Reenter).
//
// Score is the engine's p50 ÷ the session's.
func Boot(ctx context.Context, o BootOptions) (Result, error) {
	o.N = cmp.Or(o.N, 50)
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	x, err := newBootBench(ctx, o)
	return conduct(ctx, x, err)
}

// bootBench is one run of the experiment.
type bootBench struct {
	o       BootOptions
	dir     string
	lab     *lab.Engine
	engine  engine.Engine
	agent   *exec.Cmd
	ended   chan error   // what the agent ended with
	output  bytes.Buffer // of the agent
	gateway string
	client  *http.Client
	failed  int
}

func newBootBench(ctx context.Context, o BootOptions) (*bootBench, error) {
	x := &bootBench{o: o, client: &http.Client{Timeout: bootLimit, Transport: &http.Transport{DisableKeepAlives: true}}}
	var err error
	if x.dir, err = os.MkdirTemp("", "holdfast-bench-"); err != nil {
		return x, err
	}
	if x.lab, err = lab.StartEngine(ctx, lab.Options{}); err != nil {
		return x, err
	}
	image, err := lab.SelfImage(bootImage, o.Server...)
	if err == nil {
		err = x.lab.Import(ctx, image)
	}
	if err != nil {
		return x, err
	}
	if x.engine, err = docker.Open(ctx, docker.Config{Host: x.lab.Host()}); err != nil {
		return x, err
	}
	return x, x.startAgent(ctx)
}

// startAgent starts an agent on the lab's engine and waits until it serves.
func (x *bootBench) startAgent(ctx context.Context) error {
	var err error
	if x.gateway, err = freeAddress(); err != nil {
		return err
	}
	api, err := freeAddress()
	if err != nil {
		return err
	}
	config := filepath.Join(x.dir, "holdfast.yaml")
	text := fmt.Sprintf(`
node: bench
data_dir: %[1]s/data
run_dir: %[1]s/run
engine: {host: "%[2]s"}
gateway: {listen: "%[3]s"}
api: {socket: %[1]s/run/s, listen: "%[4]s"}
templates:
  - {name: bench, image: "%[5]s", port: %[6]d, ready: {timeout: 30s}}
`, x.dir, x.lab.Host(), x.gateway, api, bootImage, bootPort)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	argv := append(append([]string{}, x.o.Agent...), "--config", config)
	x.agent = exec.Command(argv[0], argv[1:]...)
	x.agent.Stdout, x.agent.Stderr = &x.output, &x.output
	if err := x.agent.Start(); err != nil {
		x.agent = nil
		return err
	}
	x.ended = make(chan error, 1)
	go func() { x.ended <- x.agent.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	for {
		if res, err := x.client.Get("http://" + api + "/readyz"); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-x.ended:
			x.ended <- err // for close
			return errors.New("the agent ended at once")
		case <-ctx.Done():
			return fmt.Errorf("the agent did not come up: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func (x *bootBench) close() error {
	var errs []error
	if x.agent != nil {
		_ = x.agent.Process.Signal(unix.SIGTERM) // it may have ended
		if err := <-x.ended; err != nil {
			errs = append(errs, fmt.Errorf("the agent: %w\n%s", err, &x.output))
		}
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

func (x *bootBench) run(ctx context.Context) (Result, error) {
	info, err := x.engine.Info(ctx)
	if err != nil {
		return Result{}, err
	}
	var peer, ours []float64
	for i := range x.o.N + bootWarmups {
		if i%10 == 0 {
			fmt.Fprintf(x.o.Progress, "%d of %d boots of each kind\n", max(0, i-bootWarmups), x.o.N)
		}
		// Which goes first changes from turn to turn.
		kinds := []func(context.Context, int) (time.Duration, error){x.engineBoot, x.sessionBoot}
		took := make([]time.Duration, 2)
		for _, k := range []int{i % 2, 1 - i%2} {
			if took[k], err = kinds[k](ctx, i); err != nil {
				return Result{}, err
			}
		}
		if i >= bootWarmups {
			peer = append(peer, millis(took[0]))
			ours = append(ours, millis(took[1]))
		}
	}
	r := Result{
		Name:    "boot",
		Machine: EngineMachine(info),
		Rows:    []Row{NewRow(rowEngineBoot, "ms", peer), NewRow(rowSessionBoot, "ms", ours)},
		Failed:  x.failed,
	}
	r.Score = r.Rows[0].P50 / r.Rows[1].P50
	r.Notes = append(r.Notes, fmt.Sprintf("a session's p50 is %.2f times, its p99 %.2f times the engine's own create + start",
		1/r.Score, r.Rows[1].P99/r.Rows[0].P99))
	return r, nil
}

// engineBoot is what the engine takes for a container like a session's.
func (x *bootBench) engineBoot(ctx context.Context, i int) (time.Duration, error) {
	start := time.Now()
	id, err := x.engine.Create(ctx, engine.Spec{
		Name: fmt.Sprintf("peer-%d", i), Image: bootImage, Hostname: "peer",
		Env:     []string{"HOLDFAST_SESSION=peer", "HOLDFAST_EPOCH=1"},
		Restart: engine.RestartNo, Init: true, NoNewPrivileges: true,
	})
	if err == nil {
		err = x.engine.Start(ctx, id)
	}
	took := time.Since(start)
	if err != nil {
		return 0, err
	}
	return took, x.engine.Remove(ctx, id)
}

// sessionBoot is what a client waits for: from its request to the first byte of
// the session's answer. The container is removed before the next turn.
func (x *bootBench) sessionBoot(ctx context.Context, i int) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/s/boot-%d/", x.gateway, i), nil)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	res, err := x.client.Do(req)
	if err != nil {
		return 0, err
	}
	_, err = res.Body.Read(make([]byte, 1))
	took := time.Since(start)
	res.Body.Close()
	if err != nil && err != io.EOF || res.StatusCode != http.StatusOK {
		x.failed++
	}
	list, err := x.engine.List(ctx, map[string]string{"holdfast.session": fmt.Sprintf("boot-%d", i)})
	if err != nil {
		return 0, err
	}
	for _, c := range list {
		if err := x.engine.Remove(ctx, c.ID); err != nil {
			return 0, err
		}
	}
	return took, nil
}
