package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"text/template"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/bench/rig"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/pki"
	"holdfast/internal/sessions/session"
	"holdfast/test/lab/echoserver"
)

// node is one machine of the fleet: an agent with its own directories, addresses and
// link to etcd. All machines share the lab's container engine. The node's label tells
// their containers apart.
type node struct {
	id      holdfast.NodeID
	dir     string // of the machine; removed when the machine vanishes
	logFile string
	program string // the machine's own file of holdfast
	gateway string // host:port
	trace   string // file; kept when the machine vanishes
	argv    []string
	link    *link
	api     *client.Client
	agent   *rig.Process // nil while no agent runs
	engine  engine.Engine

	dataSize int          // of the file system of its data directory, in bytes
	mounted  bool         // the file system is there
	memory   cgroup.Group // of the agent and its helpers

	live     atomic.Bool  // clients connect here
	visitors atomic.Int64 // number of clients that are connecting here
}

// nodeConfig is the agent's configuration.
var nodeConfig = template.Must(template.New("node").Parse(`
node: {{.Node}}
data_dir: {{.Dir}}/data
run_dir: {{.Dir}}/run
log: {level: info}
engine: {host: "{{.Engine}}"}
store:
  endpoints: [{{range .Endpoints}}"{{.}}",{{end}}]
  renew: {{.Timing.Renew}}
  fence: {{.Timing.Fence}}
  kill_budget: {{.Timing.KillBudget}}
  ttl: {{.Timing.TTL}}
  trace_file: {{.Trace}}
fleet: {listen: "{{.Host}}:7072", certificates: {{.Certificates}}}
gateway: {listen: "{{.Host}}:7070", park_time: {{.ParkTime}}, boots_per_client: 0}
api: {socket: {{.Dir}}/run/s, listen: ""}
sessions: {idle_stop: 0s}
{{- with .Runsc}}
moving: {runsc: {{.Program}}, runtime: {{.Images}}.runtime, staged: {{.Images}}}
{{- end}}
templates:
  - name: bench
    image: "{{.Image}}"
    port: {{.Port}}
    {{.Pool}}
{{- with .Sleep}}
    sleep: {after: {{.}}, idle_by: data}
{{- end}}
    env: { {{- .TicksEnv}}: /ticks, {{.MachineEnv}}: {{.Node}}{{if .Runsc}}, {{.BootedEnv}}: "{{.Booted}}"{{end}}}
    mounts: [{type: bind, source: {{.Ticks}}, target: /ticks}]
    ready: {http: /healthz, timeout: 60s}
{{- if .Runsc}}
    runtime: {{.Runtime}}
    handover: memory
    fork: allowed
    websocket: keep
{{- end}}
`))

// newNode makes the n-th machine, from 1 on, with its certificates. It starts only the
// link.
func (x *experiment) newNode(n int) (_ *node, err error) {
	name := fmt.Sprintf("n%d", n)
	host := fmt.Sprintf("127.0.1.%d", n)
	m := &node{
		id: holdfast.NodeID(name), dir: filepath.Join(x.scratch, name), gateway: host + ":7070",
		logFile: filepath.Join(x.dir, name+".log"), trace: filepath.Join(x.dir, name+traceSuffix), engine: x.engine,
		program: filepath.Join(x.scratch, "programs", name, "holdfast"), dataSize: dataSize,
	}
	if x.o.Runsc != "" {
		m.dataSize = dataSizeImages
	}
	if m.link, err = newLink(fmt.Sprintf("127.0.3.%d", n), 2379, x.etcd.Endpoints()); err != nil {
		return nil, err
	}
	m.link.start()
	x.nodes = append(x.nodes, m) // from now on the experiment ends it
	certificates := filepath.Join(x.scratch, "certificates", name)
	join := pki.Join{
		CA: x.authority(), Node: m.id, Addresses: []string{host},
		Validity: pki.DefaultValidity, Out: certificates, Now: time.Now(),
	}
	if _, err := join.Do(); err != nil {
		return nil, err
	}
	config := x.config(m)
	f, err := os.OpenFile(config, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	kind := x.o.pools()[(n-1)%len(x.o.pools())]
	pool, _ := poolTemplate(kind) // Check has validated it
	booted := time.Now().UnixNano() - int64(now())
	err = nodeConfig.Execute(f, map[string]any{
		"Runsc": x.runsc(n), "Runtime": runtimeOf(n), "BootedEnv": echoserver.BootedEnv, "Booted": booted,
		"Node": m.id, "Dir": m.dir, "Host": host, "Engine": x.lab.Host(), "Endpoints": m.link.endpoints(),
		"Timing": timing(x.o.TTL), "Trace": m.trace, "Certificates": certificates,
		"Image": image, "Port": sessionPort, "TicksEnv": echoserver.TicksEnv, "MachineEnv": echoserver.MachineEnv, "Ticks": x.ticks(),
		"ParkTime": x.o.ParkTime, "Pool": pool, "Sleep": x.o.Sleep,
	})
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	m.argv = x.agentCommand(m, config)
	if err := errors.Join(x.install(m), x.newMemoryGroup(m)); err != nil {
		return nil, err
	}
	m.api, err = client.New(client.Options{Socket: filepath.Join(m.dir, "run", "s")})
	return m, err
}

// boot starts the machine's agent and returns when it serves.
func (m *node) boot(ctx context.Context) error {
	if err := m.mountData(); err != nil {
		return err
	}
	var err error
	if m.agent, err = rig.Start("agent "+string(m.id), m.argv, m.logFile, rig.Nice, false); err != nil {
		return err
	}
	// ESRCH: it has ended.
	if err := kfile.Write(m.memory.Dir()+"/cgroup.procs", strconv.Itoa(m.agent.PID())); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return m.awaitReady(ctx)
}

// awaitReady returns when the machine's agent serves, for the first time or after a
// pause. From then on clients use its gateway.
func (m *node) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	for {
		err := m.api.Ready(ctx)
		if err == nil {
			m.live.Store(true)
			return nil
		}
		select {
		case <-m.agent.Ended:
			return fmt.Errorf("%s ended before it was ready\n%s", m.agent.Name, m.agent.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s did not get ready: %w: %w\n%s", m.agent.Name, ctx.Err(), err, m.agent.Tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// drain makes the agent hand over all that it owns, as a preemption notice does.
func (m *node) drain(ctx context.Context) (holdfast.DrainReport, error) {
	return m.api.Drain(ctx, "", api.DrainRequest{}, func(holdfast.Step) {})
}

// leave removes the machine from the clients' choice and waits for those that are
// connecting.
func (m *node) leave(ctx context.Context) {
	m.live.Store(false)
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	for m.visitors.Load() > 0 && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
}

// killAgent kills only the agent, with SIGKILL.
func (m *node) killAgent() {
	m.live.Store(false)
	m.agent.Kill()
}

// vanish ends the machine: the agent, its helper processes (every process with the
// machine's directory in its arguments), and its containers. The engine is shared and
// may start the last requested containers seconds later. These containers exit by
// themselves before they do anything.
func (x *experiment) vanish(ctx context.Context, m *node) error {
	m.live.Store(false)
	pids, err := m.containers(ctx) // listed first, because the kills must be simultaneous
	if err != nil {
		return err
	}
	helpers, err := mentioning(m.dir + "/")
	if err != nil {
		return err
	}
	m.agent.Asked.Store(true)
	signalEach(append(helpers, pids...), unix.SIGKILL)
	m.agent.Kill()
	if err := x.markGone(ctx, m); err != nil {
		return err
	}
	if err := x.sweep(ctx, m); err != nil {
		return err
	}
	if err := m.unmountData(); err != nil {
		return err
	}
	return os.RemoveAll(m.dir)
}

// markGone tells the machine's containers, also those started later, that the machine
// is gone: all with an epoch up to the store's current revision. No request of the
// machine may reach the store afterwards.
func (x *experiment) markGone(ctx context.Context, m *node) error {
	m.link.cut()
	defer m.link.heal() // no agent uses it now
	_, revision, err := x.observer.store.List(ctx)
	if err != nil {
		return err
	}
	file := filepath.Join(x.ticks(), string(m.id)+echoserver.GoneSuffix)
	return atomicfile.WriteNoSync(file, strconv.AppendInt(nil, int64(revision), 10), 0o644)
}

const (
	// settled is the time without a new container after which a machine counts as gone.
	settled = 500 * time.Millisecond
	// removal is the time limit for one removal. An engine that has lost the exit of a
	// container's process never completes it.
	removal = 5 * time.Second
)

// sweep kills and removes the machine's containers until no new ones appear. A container
// that the engine does not remove stays, without processes, for the next agent.
func (x *experiment) sweep(ctx context.Context, m *node) error {
	ctx, cancel := context.WithTimeout(ctx, rig.Patience)
	defer cancel()
	var last error // of a removal: the engine may be removing it already
	stuck := map[string]bool{}
	for quiet := now(); now()-quiet < settled; sleep(ctx, 20*time.Millisecond) {
		pids, err := m.containers(ctx)
		if err != nil {
			return errors.Join(err, last)
		}
		signalEach(pids, unix.SIGKILL)
		list, err := m.engine.List(ctx, m.label())
		if err != nil {
			return errors.Join(err, last)
		}
		for _, c := range list {
			if stuck[c.ID] {
				continue
			}
			last = m.remove(ctx, c.ID)
			if stuck[c.ID] = errors.Is(last, context.DeadlineExceeded); stuck[c.ID] {
				x.say("%s: the engine has not removed container %s after %s", m.id, c.ID[:12], removal)
			}
			quiet = now()
		}
	}
	return nil
}

func (m *node) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removal)
	defer cancel()
	return m.engine.Remove(ctx, id)
}

func (m *node) label() map[string]string { return map[string]string{session.LabelNode: string(m.id)} }

// containers returns the pids of the inits of the machine's containers.
func (m *node) containers(ctx context.Context) ([]int, error) {
	list, err := m.engine.List(ctx, m.label())
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, c := range list {
		c, err := m.engine.Inspect(ctx, c.ID)
		if errors.Is(err, holdfast.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if c.Pid > 0 {
			pids = append(pids, c.Pid)
		}
	}
	return pids, nil
}

// mentioning returns the processes of the lab that have word in their arguments.
func mentioning(word string) ([]int, error) {
	all, err := proc.Host.Pids()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, pid := range all {
		args, err := proc.Host.Cmdline(pid)
		if err == nil && pid != os.Getpid() && strings.Contains(strings.Join(args, " "), word) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
