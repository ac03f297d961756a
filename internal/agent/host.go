package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/sdnotify"
	"holdfast/internal/platform/store/etcd"
	"holdfast/internal/platform/store/trace"
)

// prepareHost makes the agent's directories, locks them and settles the node's
// id. Two agents on one data directory would both think that they own its
// sessions; two on one run directory would take each other's deadman over, which
// then stands behind one of them only. The locks are held until closed.
func (a *Agent) prepareHost() (locks, error) {
	var held locks
	for _, d := range []struct{ dir, key, hint string }{
		{a.cfg.DataDir, "data_dir", "another agent runs on this data directory; end it with: holdfast agent stop --keep"},
		{a.cfg.RunDir, "run_dir", "another agent runs in this run directory; give each agent of a host its own run_dir, or end the other one with: holdfast agent stop --keep"},
	} {
		if err := os.MkdirAll(d.dir, 0o700); err != nil {
			held.Close()
			return nil, holdfast.WithHint(fmt.Errorf("making the agent's directory: %w", err), "run the agent as root, or name another with data_dir and run_dir")
		}
		if held.has(d.dir) {
			continue // one directory may be both
		}
		f, err := lockDir(d.dir)
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = holdfast.WithHint(err, d.hint)
		}
		if err != nil {
			held.Close()
			return nil, fmt.Errorf("%s: %w", d.key, err)
		}
		held = append(held, f)
	}
	if err := a.settleID(); err != nil {
		held.Close()
		return nil, err
	}
	return held, nil
}

// locks are directories that no other agent may use.
type locks []*os.File

func (l locks) Close() {
	for _, f := range l {
		f.Close()
	}
}

// has reports whether the directory is locked already, by whatever path.
func (l locks) has(dir string) bool {
	there, err := os.Stat(filepath.Join(dir, lockName))
	if err != nil {
		return false
	}
	for _, f := range l {
		if own, err := f.Stat(); err == nil && os.SameFile(own, there) {
			return true
		}
	}
	return false
}

// lockName is the file in a directory that its agent locks.
const lockName = "lock"

// lockDir locks a directory until the file is closed; unix.EWOULDBLOCK when
// another has it.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return f, nil
}

// settleID keeps the node's id in the data directory, beside the lease that the
// node's records hang on: under another id, those records would be nobody's and
// their keys could not boot. A host that was renamed keeps its id; a
// configuration that names another one is a mistake. A file without an id, which
// a power cut may have left, is none.
func (a *Agent) settleID() error {
	path := filepath.Join(a.cfg.DataDir, "node")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the node's id: %w", err)
	}
	kept := holdfast.NodeID(strings.TrimSpace(string(text)))
	switch {
	case kept == "":
		if err := atomicfile.Write(path, []byte(string(a.node)+"\n"), 0o600); err != nil {
			return fmt.Errorf("keeping the node's id: %w", err)
		}
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

func (a *Agent) notify(state string) { sdnotify.Notify(a.log, state) }
