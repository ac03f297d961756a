package agent

import (
	"context"
	"errors"
	"path/filepath"

	"holdfast/internal/platform/sdnotify"
	"holdfast/internal/platform/store/etcd"
	"holdfast/internal/platform/store/trace"
)

// openStore opens the store of the cluster, or the embedded one. failed delivers the
// error of an embedded store that has ended.
func (a *Agent) openStore(ctx context.Context) (closeStore func() error, failed <-chan error, err error) {
	c := a.cfg.Store
	if len(c.Endpoints) > 0 {
		s, err := etcd.Dial(ctx, etcd.Config{
			Endpoints: c.Endpoints, Username: c.Username, PasswordFile: c.PasswordFile,
			TLS: etcd.TLSConfig{CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile}, Log: a.log,
		})
		if err != nil {
			return nil, nil, err
		}
		a.store = s
		closeStore, err = a.traceStore(s.Close)
		return closeStore, nil, err
	}
	s, err := etcd.Open(ctx, etcd.ServerConfig{DataDir: filepath.Join(a.cfg.DataDir, "etcd"), Log: a.log})
	if err != nil {
		return nil, nil, err
	}
	a.store = s.Store()
	told := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		select {
		case <-s.Failed():
			told <- s.Err()
		case <-done:
		}
	}()
	closeStore, err = a.traceStore(func() error { close(done); return s.Close() })
	return closeStore, told, err
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
