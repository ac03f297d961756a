package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/pki"
)

// Fleet is an etcd and the agents that share it, in the network namespace of a lab. One
// goroutine uses it.
type Fleet struct {
	dir, authority string
	etcd           *Cluster
	agents         []*Agent
}

// FleetStore is the address of the fleet's etcd.
const FleetStore = "127.0.2.1:2379"

// StartFleet makes a certificate authority and starts an etcd. All files are in dir. member is
// the command of an etcd member; see Member.
func StartFleet(ctx context.Context, dir string, member []string) (*Fleet, error) {
	f := &Fleet{dir: dir, authority: filepath.Join(dir, "authority")}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		_, err = pki.InitCA(f.authority, time.Now())
	}
	if err != nil {
		return nil, err
	}
	f.etcd, err = NewCluster(ClusterOptions{Members: 1, Dir: dir, Role: member, Nice: Nice,
		Address: func(int) (client, peer string) { return FleetStore, "127.0.2.1:2380" }})
	if err != nil {
		return nil, err
	}
	if err := f.etcd.Start(ctx); err != nil {
		f.etcd.Stop()
		return nil, err
	}
	return f, nil
}

// Add makes an agent of a program, which is reached by other nodes at host, and its certificates.
// The caller writes its configuration and boots it.
func (f *Fleet) Add(program string, id holdfast.NodeID, host string) (*Agent, error) {
	dir := filepath.Join(f.dir, string(id))
	a := &Agent{ID: id, Dir: dir, Config: dir + ".yaml", Certificates: dir + "-certificates", Socket: filepath.Join(dir, "run", "s")}
	a.Argv = []string{program, "agent", "--config", a.Config}
	join := pki.Join{CA: f.authority, Node: id, Addresses: []string{host}, Validity: pki.DefaultValidity, Out: a.Certificates, Now: time.Now()}
	if _, err := join.Do(); err != nil {
		return nil, err
	}
	var err error
	if a.API, err = client.New(client.Options{Socket: a.Socket}); err != nil {
		return nil, err
	}
	f.agents = append(f.agents, a)
	return a, nil
}

// Told adds the ends of the agents' logs to an error. A nil Fleet has none.
func (f *Fleet) Told(err error) error {
	if f == nil || err == nil {
		return err
	}
	for _, a := range f.agents {
		if a.Process != nil {
			err = errors.Join(err, fmt.Errorf("%s wrote last:\n%s", a.ID, a.Process.Tail()))
		}
	}
	return err
}

// Close kills all processes of the fleet, the last agent first. A nil Fleet has none.
func (f *Fleet) Close() {
	if f == nil {
		return
	}
	for _, a := range slices.Backward(f.agents) {
		a.Close()
	}
	f.etcd.Stop()
}
