package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"holdfast"
	"holdfast/internal/agent/process"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/sdnotify"
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
	s, err := etcd.Open(ctx, etcd.ServerConfig{DataDir: process.StoreDir(a.cfg), Log: a.log})
	if err != nil {
		return nil, err
	}
	a.store, a.embedded = s.Store(), s
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
