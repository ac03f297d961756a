package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/store/etcd"
	"holdfast/internal/store/trace"
)

// prepareHost makes the agent's directories, locks the data directory (two
// agents on one would both think that they own its sessions) and settles the
// node's id.
func (a *Agent) prepareHost() (*os.File, error) {
	for _, dir := range []string{a.cfg.DataDir, a.cfg.RunDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, holdfast.WithHint(fmt.Errorf("making the agent's directory: %w", err), "run the agent as root, or name another with data_dir and run_dir")
		}
	}
	path := filepath.Join(a.cfg.DataDir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, holdfast.WithHint(fmt.Errorf("locking %s: %w", path, err), "another agent runs on this data directory; end it with: holdfast agent stop --keep")
	}
	if err := a.settleID(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// settleID keeps the node's id in the data directory, beside the lease that the
// node's records hang on: under another id, those records would be nobody's and
// their keys could not boot. A host that was renamed keeps its id; a
// configuration that names another one is a mistake.
func (a *Agent) settleID() error {
	path := filepath.Join(a.cfg.DataDir, "node")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(path, []byte(a.node+"\n"), 0o600); err != nil {
			return fmt.Errorf("keeping the node's id: %w", err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the node's id: %w", err)
	}
	kept := holdfast.NodeID(strings.TrimSpace(string(text)))
	switch {
	case kept == a.node:
	case a.cfg.NodeGiven:
		return holdfast.WithHint(fmt.Errorf("node: this data directory is node %s's, not %s's", kept, a.node),
			fmt.Sprintf("call the node %s again; or drain it under that name, and remove %s", kept, path))
	default:
		a.log.Info("this host has another name than when the agent first ran; the node keeps its id", "node", kept, "host", a.node)
		a.node = kept
	}
	return nil
}

// openStore opens the cluster's store, or the embedded one. failed tells when
// the embedded one can do no more.
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

// traceStore has the calls to the store written down where that is configured.
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

// notify tells a service manager how far the agent is; without one it is
// nothing (sd_notify(3)).
func (a *Agent) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		a.log.Debug("telling the service manager", "err", err)
	}
}
