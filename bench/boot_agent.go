package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/containerd"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/pool/network"
	"holdfast/internal/sessions/session"
	"holdfast/test/lab"
)

// bootAgent is an agent process with its own store, on the experiment's engine.
type bootAgent struct {
	mode    bootMode
	engine  engine.Engine // the agent's engine
	cmd     *exec.Cmd
	ended   chan error   // receives the result of the process
	output  bytes.Buffer // may be read after ended
	gateway string       // host:port
	api     string
	sdks    string // host:port, if the mode has one
	node    string
}

// startAgent starts an agent and waits until it serves. If it returns an agent with an
// error, the caller must stop the agent.
func (x *bootBench) startAgent(ctx context.Context, m bootMode) (*bootAgent, error) {
	a := &bootAgent{mode: m, node: "bench-" + m.name}
	var err error
	if a.gateway, err = lab.FreePort(); err != nil {
		return nil, err
	}
	if a.api, err = lab.FreePort(); err != nil {
		return nil, err
	}
	dir := filepath.Join(x.dir, m.name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	on, err := x.engineOf(ctx, a, dir)
	if err != nil {
		return nil, err
	}
	sdks := ""
	if m.sdks {
		if sdks, err = a.openSDKs(dir); err != nil {
			return nil, err
		}
	}
	config := filepath.Join(dir, "holdfast.yaml")
	text := fmt.Sprintf(`
node: %[8]s
data_dir: %[1]s/data
run_dir: %[1]s/run
engine: %[2]s
gateway: {listen: "%[3]s", park_time: 5m, boots_per_client: 0}
api: {socket: %[1]s/run/s, listen: "%[4]s"}
templates:
  - {name: bench, image: "%[5]s", port: %[6]d, ready: {timeout: 30s}, %[7]s}
%[9]s
`, dir, on, a.gateway, a.api, bootImage, bootPort, m.template, a.node, m.spareTemplate()+sdks)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	argv := append(append([]string{}, x.o.Agent...), "--config", config)
	a.cmd = exec.Command(argv[0], argv[1:]...)
	a.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "HOLDFAST_") }) // the caller's configuration, not this agent's
	a.cmd.Stdout, a.cmd.Stderr = &a.output, &a.output
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	a.ended = make(chan error, 1)
	go func() { a.ended <- a.cmd.Wait() }()
	return a, a.up(ctx, x.client)
}

// spareTemplate returns the second template, or "".
func (m bootMode) spareTemplate() string {
	if m.spare == 0 {
		return ""
	}
	return fmt.Sprintf("  - {name: %s, image: %q, port: %d, network: pooled, warm: %d}\n", pooledTemplate, bootImage, bootPort, m.spare)
}

// openSDKs writes the file of API keys, and returns its part of the configuration.
func (a *bootAgent) openSDKs(dir string) (text string, err error) {
	if a.sdks, err = lab.FreePort(); err != nil {
		return "", err
	}
	keys := filepath.Join(dir, "keys")
	return fmt.Sprintf("e2b: {listen: %q, api_keys_file: %s}", a.sdks, keys), os.WriteFile(keys, []byte("bench "+sandboxKey+"\n"), 0o600)
}

// engineOf opens the engine of an agent's mode, puts the image on it, and returns the
// engine's part of the agent's configuration. Each mode on containerd has its own
// namespace and bridge.
func (x *bootBench) engineOf(ctx context.Context, a *bootAgent, dir string) (string, error) {
	a.engine = x.engine
	if !a.mode.containerd {
		return fmt.Sprintf("{host: %q, bridge: %q, subnet: 10.%d.0.0/16}", x.lab.Host(), "hf"+a.mode.name, x.nextSubnet()), nil
	}
	c := containerd.Config{
		Host: x.other.Host(), Namespace: "bench-" + a.mode.name, Bridge: "hf" + a.mode.name,
		Subnet: fmt.Sprintf("10.%d.0.0/16", 180+len(x.agents)), CgroupParent: x.other.CgroupParent(),
		Dir: filepath.Join(dir, "data", "containerd"), // the same directory as the agent's
	}
	e, err := containerd.Open(ctx, c)
	if err != nil {
		return "", err
	}
	archive, err := x.image.Archive()
	if err == nil {
		err = e.Load(ctx, archive)
	}
	if err != nil {
		return "", errors.Join(err, e.Close())
	}
	a.engine = e
	return fmt.Sprintf("{name: containerd, host: %q, namespace: %q, bridge: %q, subnet: %q, cgroup_parent: %q}", c.Host, c.Namespace, c.Bridge, c.Subnet, c.CgroupParent), nil
}

// nextSubnet returns the second byte of the subnet of another agent's bridge. Two bridges of
// one subnet would take each other's packets.
func (x *bootBench) nextSubnet() int {
	x.subnets++
	return 159 + x.subnets
}

// up waits until the agent serves.
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
			a.ended <- err // stop reads it again
			return errors.New("the agent exited during its start")
		case <-ctx.Done():
			return fmt.Errorf("the agent does not answer: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends the agent and returns its error, if any.
func (a *bootAgent) stop() error {
	_ = a.cmd.Process.Signal(unix.SIGTERM) // an error means that it has exited already
	err := <-a.ended
	if err != nil {
		err = fmt.Errorf("the agent of %s: %w\n%s", a.mode.name, err, &a.output)
	}
	if a.mode.containerd {
		err = errors.Join(err, a.engine.Close())
	}
	return err
}

// settle waits until the agent's pools are full and the engine has no other containers
// of the agent.
func (a *bootAgent) settle(ctx context.Context, x *bootBench) error {
	for {
		n, err := a.self(ctx, x.client)
		if err != nil {
			return err
		}
		own, err := a.containers(ctx)
		if err != nil {
			return err
		}
		holders, err := a.engine.List(ctx, map[string]string{network.Label: a.node})
		if err != nil {
			return err
		}
		if n.Networks == n.NetworksKept && n.Warm == n.WarmWanted && own == n.Warm && len(holders) >= a.holders() {
			return nil
		}
		if tasks.Sleep(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("%d of %d networks and %d holders are ready; %d of %d containers are warm, the engine has %d: %w",
				n.Networks, n.NetworksKept, len(holders), n.Warm, n.WarmWanted, own, ctx.Err())
		}
	}
}

// containers returns how many containers of sessions and warm ones the engine has.
func (a *bootAgent) containers(ctx context.Context) (int, error) {
	own, err := a.engine.List(ctx, map[string]string{session.LabelNode: a.node})
	return len(own), err
}

// self returns the agent's node.
func (a *bootAgent) self(ctx context.Context, client *http.Client) (holdfast.Node, error) {
	var all api.Nodes
	if err := a.ask(ctx, client, "/v1/nodes", &all); err != nil {
		return holdfast.Node{}, err
	}
	if len(all.Nodes) != 1 {
		return holdfast.Node{}, fmt.Errorf("the agent lists %d nodes, want 1", len(all.Nodes))
	}
	return all.Nodes[0], nil
}

// holders returns how many holders the agent has at least while it is idle.
func (a *bootAgent) holders() int {
	if !a.mode.pooled {
		return 0
	}
	return min(config.Default().Sessions.Boots, network.FirstHolders())
}

// sessions returns the agent's sessions.
func (a *bootAgent) sessions(ctx context.Context, client *http.Client) ([]api.Session, error) {
	var all api.Sessions
	err := a.ask(ctx, client, "/v1/sessions", &all)
	return all.Sessions, err
}

// ask sends a GET request to the agent's API and decodes the answer.
func (a *bootAgent) ask(ctx context.Context, client *http.Client, path string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.api+path, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, res.Status)
	}
	return json.NewDecoder(res.Body).Decode(answer)
}
