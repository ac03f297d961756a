package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
)

// memberConfig is what a member of the etcd cluster is told, as JSON in its one
// argument.
type memberConfig struct {
	Name    string `json:"name"`
	Dir     string `json:"dir"`
	Client  string `json:"client"`  // host:port
	Peer    string `json:"peer"`    // host:port
	Cluster string `json:"cluster"` // name=url,… of all members
}

// ready is what a child prints on its standard output once it serves.
const ready = "ready"

// Member is the role RoleMember: one member of an etcd cluster, with etcd's own
// settings. It says that it is ready on out, and returns when ctx is done or in
// ends, which it does when the parent dies.
func Member(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("etcd member: %d arguments, want one", len(args))
	}
	var m memberConfig
	if err := json.Unmarshal([]byte(args[0]), &m); err != nil {
		return fmt.Errorf("etcd member: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		io.Copy(io.Discard, in)
		cancel()
	}()
	e, err := embed.StartEtcd(m.embed())
	if err != nil {
		return fmt.Errorf("etcd member %s: %w", m.Name, err)
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
		fmt.Fprintln(out, ready)
	case <-ctx.Done():
		return nil
	}
	select {
	case err := <-e.Err():
		return fmt.Errorf("etcd member %s: %w", m.Name, err)
	case <-e.Server.StopNotify():
		return fmt.Errorf("etcd member %s stopped by itself", m.Name)
	case <-ctx.Done():
		return nil
	}
}

func (m memberConfig) embed() *embed.Config {
	address := func(hostPort string) []url.URL { return []url.URL{{Scheme: "http", Host: hostPort}} }
	c := embed.NewConfig()
	c.Name, c.Dir = m.Name, m.Dir
	c.ListenClientUrls, c.AdvertiseClientUrls = address(m.Client), address(m.Client)
	c.ListenPeerUrls, c.AdvertisePeerUrls = address(m.Peer), address(m.Peer)
	c.InitialCluster = m.Cluster
	c.LogLevel, c.LogOutputs = "warn", []string{"stderr"}
	return c
}

// members is how many an etcd cluster has: with three it survives the loss of
// one.
const members = 3

// cluster is an etcd of three members, each a process.
type cluster struct {
	members [members]*member
}

type member struct {
	memberConfig
	role    []string // command
	logFile string
	process *process // nil while it is down
}

// newCluster makes a cluster with its data below dir and its logs in logs.
func newCluster(dir, logs string, role []string) *cluster {
	c := &cluster{}
	all := ""
	for i := range c.members {
		name := fmt.Sprintf("etcd-%d", i+1)
		m := &member{role: role, logFile: filepath.Join(logs, name+".log"), memberConfig: memberConfig{
			Name: name, Dir: filepath.Join(dir, name),
			Client: fmt.Sprintf("127.0.2.%d:2379", i+1), Peer: fmt.Sprintf("127.0.2.%d:2380", i+1),
		}}
		if i > 0 {
			all += ","
		}
		all += name + "=http://" + m.Peer
		c.members[i] = m
	}
	for _, m := range c.members {
		m.Cluster = all
	}
	return c
}

// endpoints are the members' own addresses.
func (c *cluster) endpoints() []string {
	var out []string
	for _, m := range c.members {
		out = append(out, m.Client)
	}
	return out
}

// start starts all members and returns when they serve.
func (c *cluster) start(ctx context.Context) error {
	for _, m := range c.members { // none is ready before it has met another
		if err := m.launch(); err != nil {
			return err
		}
	}
	for _, m := range c.members {
		if err := m.process.awaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// nice is the priority of etcd's members and of agents, setpriority(2). Agents
// have it from their service manager, and a fleet's etcd has CPUs of its own; here
// dozens of containers that start at once would keep it from answering, and nodes
// whose leases are not renewed end what they own.
const nice = -10

// launch starts the member, on the data that it has.
func (m *member) launch() error {
	arg, err := json.Marshal(m.memberConfig)
	if err != nil {
		return err
	}
	m.process, err = startProcess(m.Name, append(append([]string{}, m.role...), string(arg)), m.logFile, true)
	return err
}

func (m *member) kill() {
	if m.process != nil {
		m.process.kill()
		m.process = nil
	}
}

// stop ends all members. Nothing of their data is kept, so nothing is ended
// gracefully.
func (c *cluster) stop() {
	for _, m := range c.members {
		m.kill()
	}
}
