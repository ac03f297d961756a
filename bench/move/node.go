package move

import (
	"context"
	"errors"
	"fmt"
	"os"
	"text/template"
	"time"

	"holdfast"
	"holdfast/bench/rig"
	"holdfast/internal/platform/tasks"
)

const (
	runtimeName = "boxed"
	image       = RoleShell + ":latest"
	shellPort   = 8080
	told        = "moved" // the gateway's message to clients after a move
)

// kind is a template of sessions with a certain amount of memory.
type kind struct {
	name string
	mib  int // in addition to the memory of the server itself
}

// The kinds. The server itself takes a few MiB.
var (
	small  = kind{"small", 0}
	middle = kind{"middle", 24}
	copied = kind{"copied", 56}
	large  = kind{"large", 248}
)

// whole checks the additional memory of a session.
func (k kind) whole(ctx context.Context, t *terminal) error {
	if k.mib == 0 {
		return nil
	}
	return t.whole(ctx)
}

// node is one agent, with directories and addresses of its own.
type node struct {
	*rig.Agent
	gateway string // host:port
	metrics string // URL
}

var nodeConfig = template.Must(template.New("node").Parse(`
node: {{.Node}}
data_dir: {{.Dir}}/data
run_dir: {{.Dir}}/run
engine: {host: "{{.Engine}}"}
# Leases are not what is measured: no node loses one here.
store: {endpoints: ["{{.Etcd}}"], renew: 1s, fence: 20s, kill_budget: 5s, ttl: 30s}
fleet: {listen: "{{.Host}}:7072", certificates: {{.Certificates}}}
gateway: {listen: "{{.Host}}:7070", park_time: 2m, boots_per_client: 0}
api: {socket: {{.Dir}}/run/s, listen: "{{.Host}}:7071"}
sessions: {idle_stop: 0s}
moving: {runsc: {{.Runsc.Program}}, runtime: {{.Script}}, staged: {{.Runsc.Images}}}
templates:
{{- range .Kinds}}
  - name: {{.Name}}
    image: "{{$.Image}}"
    port: {{$.Port}}
    env: { {{- $.Env}}: "{{.MiB}}"}
    ready: {http: /healthz, timeout: 60s}
    runtime: {{$.Runtime}}
    network: {{$.Network}}
    handover: memory
    warm: {{.Warm}}
    fork: allowed
    websocket: keep
    kept_sockets: {time: 2m, tell: {{$.Told}}}
{{- end}}
`))

// warmOf returns how many sandboxes of a kind wait on each node.
func (x *experiment) warmOf(k kind) int {
	switch k {
	case small:
		return min(x.o.Warm, 2) // its sessions are restored one after the other
	case large:
		return min(x.o.Warm, 2, x.o.Large)
	case copied:
		return x.o.Warm
	}
	return 0
}

// warm waits until the sandboxes of a kind wait on the nodes with sessions.
func (x *experiment) warm(ctx context.Context, k kind) error {
	ctx, cancel := context.WithTimeout(ctx, clientTime)
	defer cancel()
	for _, m := range x.hosts() {
		for want := x.warmOf(k); want > 0; {
			all, err := m.figures(ctx)
			if err != nil {
				return err
			}
			if int(all[fmt.Sprintf("holdfast_warm_ready{template=%q}", k.name)]) >= want {
				break
			}
			if err := tasks.Sleep(ctx, 50*time.Millisecond); err != nil {
				return fmt.Errorf("node %s does not have %d sandboxes: %w", m.ID, want, err)
			}
		}
	}
	return nil
}

// newNode creates node n, from 1 on, with its certificates. It starts nothing.
func (x *experiment) newNode(n int, script string) (*node, error) {
	host := fmt.Sprintf("127.0.1.%d", n)
	a, err := x.fleet.Add(x.o.Program, holdfast.NodeID(fmt.Sprintf("n%d", n)), host)
	if err != nil {
		return nil, err
	}
	m := &node{a, host + ":7070", "http://" + host + ":7071/metrics"}
	x.nodes = append(x.nodes, m)
	type kindOf struct {
		Name      string
		MiB, Warm int
	}
	var kinds []kindOf
	for _, k := range []kind{small, middle, copied, large} {
		kinds = append(kinds, kindOf{k.name, k.mib, x.warmOf(k)})
	}
	f, err := os.OpenFile(m.Config, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	err = nodeConfig.Execute(f, map[string]any{
		"Node": m.ID, "Dir": m.Dir, "Host": host, "Engine": x.lab.Host(), "Etcd": rig.FleetStore, "Certificates": m.Certificates,
		"Runsc": x.runtime, "Script": script, "Kinds": kinds, "Image": image, "Port": shellPort, "Env": fillEnv, "Runtime": runtimeName, "Network": x.o.Network, "Told": told,
	})
	return m, errors.Join(err, f.Close())
}

// figures returns the node's metrics; see rig.Figures.
func (m *node) figures(ctx context.Context) (map[string]float64, error) {
	return rig.Figures(ctx, m.metrics)
}
