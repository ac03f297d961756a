package scale

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"holdfast/test/lab"
)

// memberTimeout is what a cluster may take to elect its first leader.
const memberTimeout = time.Minute

// memberConfig is what a member is told, as JSON in its one argument: see
// fleet.Member, which plays the role.
type memberConfig struct {
	Name    string `json:"name"`
	Dir     string `json:"dir"`
	Client  string `json:"client"`  // host:port
	Peer    string `json:"peer"`    // host:port
	Cluster string `json:"cluster"` // name=url,… of all members
}

// members are the processes of a cluster, and a client of ours beside the
// nodes' own.
type members struct {
	endpoints []string
	commands  []*exec.Cmd
	inputs    []io.Closer
	client    *clientv3.Client
}

// startMembers starts three members on loopback and returns when all serve.
func startMembers(ctx context.Context, command []string, dir string) (*members, error) {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	m := &members{}
	configs, err := memberConfigs(dir)
	if err != nil {
		return nil, err
	}
	ready := make(chan error, len(configs))
	for _, c := range configs {
		m.endpoints = append(m.endpoints, c.Client)
		if err := m.start(command, c, ready); err != nil {
			m.stop()
			return nil, err
		}
	}
	for range configs {
		var err error
		select {
		case err = <-ready:
		case <-ctx.Done():
			err = fmt.Errorf("the etcd cluster is not ready: %w", ctx.Err())
		}
		if err != nil {
			m.stop()
			return nil, err
		}
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: m.endpoints, DialTimeout: memberTimeout, Logger: zap.NewNop()})
	if err != nil {
		m.stop()
		return nil, fmt.Errorf("connect to the etcd cluster: %w", err)
	}
	m.client = client
	return m, nil
}

// memberConfigs are three members on free ports of the loopback.
func memberConfigs(dir string) ([]memberConfig, error) {
	var configs []memberConfig
	var all []string
	for i := range 3 {
		name := fmt.Sprintf("m%d", i+1)
		client, err := lab.FreePort()
		if err != nil {
			return nil, err
		}
		peer, err := lab.FreePort()
		if err != nil {
			return nil, err
		}
		configs = append(configs, memberConfig{Name: name, Dir: filepath.Join(dir, name), Client: client, Peer: peer})
		all = append(all, name+"=http://"+peer)
	}
	for i := range configs {
		configs[i].Cluster = strings.Join(all, ",")
	}
	return configs, nil
}

// start starts one member, which tells of itself on ready.
func (m *members) start(command []string, c memberConfig, ready chan<- error) error {
	arg, err := json.Marshal(c)
	if err != nil {
		return err
	}
	command = append(slices.Clone(command), string(arg))
	cmd := exec.Command(command[0], command[1:]...)
	log, err := os.Create(c.Dir + ".log") // of what etcd finds slow, mostly
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C ends us first
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start an etcd member: %w", err)
	}
	m.commands, m.inputs = append(m.commands, cmd), append(m.inputs, in)
	go func() {
		_, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			err = fmt.Errorf("an etcd member ended at once: %w", err)
		}
		ready <- err
	}()
	return nil
}

func (m *members) stop() {
	if m.client != nil {
		_ = m.client.Close() // it only says that it was closed
	}
	for _, in := range m.inputs {
		_ = in.Close()
	}
	for _, cmd := range m.commands {
		timer := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // it was asked to end
		timer.Stop()
	}
}

// pids are the members' processes.
func (m *members) pids() []int {
	var pids []int
	for _, cmd := range m.commands {
		pids = append(pids, cmd.Process.Pid)
	}
	return pids
}

// state is how far the cluster is: the revision counts writes to keys, the raft
// index all that was agreed on, size and used are the bytes of the largest
// member's database.
type clusterState struct {
	at         time.Time
	revision   int64
	index      uint64
	size, used int64
}

func (m *members) state(ctx context.Context) (clusterState, error) {
	s := clusterState{at: time.Now()}
	for _, e := range m.endpoints {
		r, err := m.client.Status(ctx, e)
		if err != nil {
			return s, fmt.Errorf("ask etcd member %s how it is: %w", e, err)
		}
		s.revision, s.index = max(s.revision, r.Header.Revision), max(s.index, r.RaftIndex)
		s.size, s.used = max(s.size, r.DbSize), max(s.used, r.DbSizeInUse)
	}
	return s, nil
}
