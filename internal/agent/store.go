package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"holdfast"
	"holdfast/internal/agent/process"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/sdnotify"
	"holdfast/internal/platform/store/embedded"
	"holdfast/internal/platform/store/etcd"
	"holdfast/internal/platform/store/trace"
	"holdfast/internal/sessions/pool/network"
	"holdfast/internal/sessions/session"
)

// openStore opens the store of the cluster, or the embedded one.
func (a *Agent) openStore(ctx context.Context) (closeStore func() error, err error) {
	c := a.cfg.Store
	if len(c.Endpoints) > 0 {
		s, err := etcd.Dial(ctx, etcd.Config{
			Endpoints: c.Endpoints, Username: c.Username, PasswordFile: c.PasswordFile,
			TLS: etcd.TLSConfig{CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile}, Log: a.log,
		})
		if err != nil {
			return nil, err
		}
		a.store = s
		return a.traceStore(s.Close)
	}
	s, err := embedded.Open(process.StoreFile(a.cfg), embedded.Config{})
	if err != nil {
		return nil, err
	}
	a.store, a.embedded = s, s
	return a.traceStore(s.Close)
}

// traceStore records the calls to the store in a file if that is configured.
func (a *Agent) traceStore(closeStore func() error) (func() error, error) {
	if a.cfg.Store.TraceFile == "" {
		return closeStore, nil
	}
	t, err := trace.Open(a.cfg.Store.TraceFile, a.node, a.store, a.log)
	if err != nil {
		return nil, errors.Join(err, closeStore())
	}
	a.store = t
	return func() error { return errors.Join(closeStore(), t.Close()) }, nil
}

func (a *Agent) notify(state string) { sdnotify.Notify(a.log, state) }

// ownContainers ensures that the node's containers on the engine are this agent's: no
// other agent with this node id runs on the engine, and none has left containers there
// whose records are in another store. The caller closes the lock when the agent has
// ended.
func (a *Agent) ownContainers(ctx context.Context, info engine.Info) (*os.File, error) {
	lock, err := process.LockEngine(process.EngineLocks, info, a.node)
	if err != nil {
		return nil, err
	}
	id, made, err := session.StoreID(ctx, a.store)
	if err == nil {
		a.storeID = id
		err = a.refuseOthers(ctx, made && !a.served())
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// served reports whether an agent has held a lease on this data directory.
func (a *Agent) served() bool {
	_, err := os.Stat(process.LeaseFile(a.cfg))
	return !errors.Is(err, fs.ErrNotExist)
}

// refuseOthers returns an error if containers of this node run whose records are in
// another store. first reports that this is the first agent of its store: then the
// containers of earlier versions, which do not name their store, are another agent's too.
func (a *Agent) refuseOthers(ctx context.Context, first bool) error {
	var others []engine.Container
	for _, label := range []string{session.LabelNode, network.Label} {
		list, err := a.engine.List(ctx, map[string]string{label: string(a.node)})
		if err != nil {
			return fmt.Errorf("listing this node's containers: %w", err)
		}
		for _, c := range list {
			if c.Running() && (session.OfOtherStore(c, a.storeID) || first && c.Labels[session.LabelStore] == "") {
				others = append(others, c)
			}
		}
	}
	if len(others) == 0 {
		return nil
	}
	return holdfast.WithHint(
		fmt.Errorf("engine: %d running containers of node %s belong to another store, for example %s", len(others), a.node, others[0].Name),
		"give each agent of an engine its own id with node:. If the other agent and its data_dir are gone, remove the containers with the label "+session.LabelNode+" or "+network.Label)
}

// templates returns the templates of sessions, with the store that their containers name.
func (a *Agent) templates() []session.Template {
	all := a.cfg.SessionTemplates()
	for i := range all {
		all[i].Store = a.storeID
	}
	return all
}

// embeddedTTL is the TTL of the lease in an embedded store. No other node can claim in
// this store, so the lease must outlive a suspended or stopped host.
const embeddedTTL = 24 * time.Hour

// publishEvery is the interval at which a node writes what has changed in its record into a
// shared store. Other nodes place sessions by this record.
const publishEvery = time.Second

// restoreHold is the time without claims after a restore of the store.
func (a *Agent) restoreHold() time.Duration {
	if len(a.cfg.Store.Endpoints) > 0 {
		return a.cfg.Store.TTL
	}
	return 0
}

// checkEvery is the interval at which this node compares its sessions with the store.
// In a shared store a comparison and a kill fit well into the fence.
func (a *Agent) checkEvery() time.Duration {
	if len(a.cfg.Store.Endpoints) > 0 {
		return a.cfg.Store.Fence / 5
	}
	return 5 * time.Second
}

func (a *Agent) leaseConfig() session.LeaseConfig {
	c := session.LeaseConfig{Node: a.node, Host: a.host, HandedOver: a.turn != nil, Address: a.cfg.Gateway.Listen, File: process.LeaseFile(a.cfg), TTL: embeddedTTL, Renew: time.Hour, Publish: 5 * time.Second}
	if len(a.cfg.Store.Endpoints) > 0 {
		t := a.cfg.Store.Timing()
		c.TTL, c.Renew, c.Publish = t.TTL, t.Renew, publishEvery
		c.Fence, c.KillBudget, c.Deadline = t.Fence, t.KillBudget, a.deadman.Extend // it runs before the lease is held
	}
	return c
}
