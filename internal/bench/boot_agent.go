package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/netpool"
	"holdfast/internal/session"
)

// bootAgent is an agent in a process of its own, with a store of its own, on the
// experiment's engine.
type bootAgent struct {
	mode    bootMode
	cmd     *exec.Cmd
	ended   chan error   // what it ended with
	output  bytes.Buffer // to be read once it has
	gateway string       // host:port
	api     string
	node    string
}

// startAgent starts an agent and waits until it serves. It is returned with an
// error, too, where it has to be stopped.
func (x *bootBench) startAgent(ctx context.Context, m bootMode) (*bootAgent, error) {
	a := &bootAgent{mode: m, node: "bench-" + m.name}
	var err error
	if a.gateway, err = freeAddress(); err != nil {
		return nil, err
	}
	if a.api, err = freeAddress(); err != nil {
		return nil, err
	}
	dir := filepath.Join(x.dir, m.name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "holdfast.yaml")
	text := fmt.Sprintf(`
node: %[8]s
data_dir: %[1]s/data
run_dir: %[1]s/run
engine: {host: "%[2]s"}
gateway: {listen: "%[3]s"}
api: {socket: %[1]s/run/s, listen: "%[4]s"}
templates:
  - {name: bench, image: "%[5]s", port: %[6]d, ready: {timeout: 30s}, %[7]s}
`, dir, x.lab.Host(), a.gateway, a.api, bootImage, bootPort, m.template, a.node)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	argv := append(append([]string{}, x.o.Agent...), "--config", config)
	a.cmd = exec.Command(argv[0], argv[1:]...)
	a.cmd.Stdout, a.cmd.Stderr = &a.output, &a.output
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	a.ended = make(chan error, 1)
	go func() { a.ended <- a.cmd.Wait() }()
	return a, a.up(ctx, x.client)
}

// up waits until it serves.
func (a *bootAgent) up(ctx context.Context, client *http.Client) error {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	for {
		if res, err := client.Get("http://" + a.api + "/readyz"); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-a.ended:
			a.ended <- err // for stop
			return errors.New("the agent ended at once")
		case <-ctx.Done():
			return fmt.Errorf("the agent did not come up: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends it, and returns what was wrong with that.
func (a *bootAgent) stop() error {
	_ = a.cmd.Process.Signal(unix.SIGTERM) // it may have ended
	if err := <-a.ended; err != nil {
		return fmt.Errorf("the agent of %s: %w\n%s", a.mode.name, err, &a.output)
	}
	return nil
}

// settle waits until the agent has all networks ready that it keeps, and the engine
// none of its containers beside those.
func (a *bootAgent) settle(ctx context.Context, x *bootBench) error {
	for {
		ready, err := a.metric(ctx, x.client, "holdfast_networks_ready")
		if err != nil {
			return err
		}
		kept, err := a.metric(ctx, x.client, "holdfast_networks_kept")
		if err != nil {
			return err
		}
		sessions, err := x.engine.List(ctx, map[string]string{session.LabelNode: a.node})
		if err != nil {
			return err
		}
		holders, err := x.engine.List(ctx, map[string]string{netpool.Label: a.node})
		if err != nil {
			return err
		}
		if ready == kept && len(sessions) == 0 && len(holders) == int(kept) {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%v of %v networks are ready, the engine has %d of them and %d sessions' containers: %w", ready, kept, len(holders), len(sessions), ctx.Err())
		}
	}
}

// metric is one of the agent's figures without labels.
func (a *bootAgent) metric(ctx context.Context, client *http.Client, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.api+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	for s := bufio.NewScanner(res.Body); s.Scan(); {
		if text, ok := strings.CutPrefix(s.Text(), name+" "); ok {
			var v float64
			_, err := fmt.Sscan(text, &v)
			return v, err
		}
	}
	return 0, fmt.Errorf("the agent has no metric %s", name)
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
