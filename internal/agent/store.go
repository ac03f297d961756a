package agent

import (
	"context"
	"errors"

	"holdfast/internal/agent/process"
	"holdfast/internal/platform/sdnotify"
	"holdfast/internal/platform/store/etcd"
	"holdfast/internal/platform/store/trace"
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
