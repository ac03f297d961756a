package rig

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"holdfast/internal/platform/tasks"
	"holdfast/test/lab"
)

// RoleMember is the role of a program that runs Member.
const RoleMember = "bench-etcd"

// memberConfig is the configuration of a member, as JSON in the only argument of its
// role.
type memberConfig struct {
	Name    string `json:"name"`
	Dir     string `json:"dir"`
	Client  string `json:"client"`  // host:port
	Peer    string `json:"peer"`    // host:port
	Cluster string `json:"cluster"` // name=url,… of all members
}

// ready is the line that a child prints on its standard output once it serves.
const ready = "ready"

// Member is the role RoleMember: one member of an etcd cluster, with etcd's own
// settings. It prints ready to out. It returns when ctx is done, or when in ends because
// the parent has died.
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

// PlayMember runs Member if this program was started in RoleMember, as a package's tests start themselves.
// The caller exits with the code.
func PlayMember() (code int, played bool) {
	if len(os.Args) < 2 || os.Args[1] != RoleMember {
		return 0, false
	}
	if err := Member(context.Background(), os.Args[2:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
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

// Cluster is an etcd cluster. Each member is a process.
type Cluster struct{ Members []*ClusterMember }

// ClusterMember is a member of a Cluster.
type ClusterMember struct {
	memberConfig
	*Process // nil while the member is down
	role     []string
	logFile  string
	nice     int
}

// ClusterOptions say how a cluster runs.
type ClusterOptions struct {
	Members int      // with three members the cluster survives the loss of one
	Dir     string   // of the data
	Logs    string   // directory of the logs; "" is Dir
	Role    []string // command that runs Member
	Nice    int      // priority of the members
	// Address returns the addresses of member n, from 1 on, as host:port. By default
	// these are free ports of the loopback.
	Address func(n int) (client, peer string)
}

// NewCluster creates a cluster and starts nothing.
func NewCluster(o ClusterOptions) (*Cluster, error) {
	c := &Cluster{}
	var all []string
	for n := range o.Members {
		m := &ClusterMember{role: o.Role, nice: o.Nice}
		m.memberConfig.Name = fmt.Sprintf("etcd-%d", n+1)
		m.Dir, m.logFile = filepath.Join(o.Dir, m.memberConfig.Name), filepath.Join(cmp.Or(o.Logs, o.Dir), m.memberConfig.Name+".log")
		if o.Address != nil {
			m.Client, m.Peer = o.Address(n + 1)
		} else if err := m.freePorts(); err != nil {
			return nil, err
		}
		all = append(all, m.memberConfig.Name+"=http://"+m.Peer)
		c.Members = append(c.Members, m)
	}
	for _, m := range c.Members {
		m.Cluster = strings.Join(all, ",")
	}
	return c, nil
}

func (m *ClusterMember) freePorts() (err error) {
	if m.Client, err = lab.FreePort(); err != nil {
		return err
	}
	m.Peer, err = lab.FreePort()
	return err
}

// Endpoints returns the client addresses of the members.
func (c *Cluster) Endpoints() (endpoints []string) {
	for _, m := range c.Members {
		endpoints = append(endpoints, m.Client)
	}
	return endpoints
}

// Start starts all members and returns when they serve. After an error, call Stop.
func (c *Cluster) Start(ctx context.Context) error {
	for _, m := range c.Members { // no member is ready before it has found another one
		if err := m.Launch(); err != nil {
			return err
		}
	}
	for _, m := range c.Members {
		if err := m.AwaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Leader returns the member that leads the cluster. It waits for at most Patience.
func (c *Cluster) Leader(ctx context.Context) (*ClusterMember, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	for {
		for _, m := range c.Members {
			if m.Process == nil {
				continue // Status would wait for it until ctx ends
			}
			s, err := client.Status(ctx, m.Client)
			if err == nil && s.Leader != 0 && s.Leader == s.Header.MemberId {
				return m, nil
			}
		}
		if tasks.Sleep(ctx, 100*time.Millisecond) != nil {
			return nil, errors.New("the etcd cluster has no leader")
		}
	}
}

// Label returns the member's name, also while it is down.
func (m *ClusterMember) Label() string { return m.memberConfig.Name }

// Launch starts the member with the data that it has.
func (m *ClusterMember) Launch() error {
	arg, err := json.Marshal(m.memberConfig)
	if err != nil {
		return err
	}
	m.Process, err = Start(m.memberConfig.Name, append(slices.Clone(m.role), string(arg)), m.logFile, m.nice, true)
	return err
}

// Kill ends the member at once.
func (m *ClusterMember) Kill() {
	if m.Process != nil {
		m.Process.Kill()
		m.Process = nil
	}
}

// Stop ends all members at once. No caller keeps their data.
func (c *Cluster) Stop() {
	for _, m := range c.Members {
		m.Kill()
	}
}
