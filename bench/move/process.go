package move

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/store/etcd"
)

// process is a child of the bench, whose output goes to a log.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer // it ends with the bench
	log   string
	ended chan struct{}
}

// nice is the priority of etcd and the agents, setpriority(2): agents have it from
// their service manager, and a fleet's etcd has CPUs of its own.
const nice = -10

func start(argv []string, log string) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), log: log, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = f, f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals of the terminal are the bench's
	if p.stdin, err = p.cmd.StdinPipe(); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its state
		close(p.ended)
	}()
	if err := unix.Setpriority(unix.PRIO_PGRP, p.cmd.Process.Pid, nice); err != nil && !errors.Is(err, unix.ESRCH) {
		p.kill()
		return nil, fmt.Errorf("the priority of %s: %w", argv[0], err)
	}
	return p, nil
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error: it has ended
	<-p.ended
	p.stdin.Close()
}

// tailBytes is how much of a log an error shows.
const tailBytes = 4 << 10

func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-tailBytes):]))
}

// startEtcd starts an etcd of one member; see fleet.Member, which plays the role.
func startEtcd(ctx context.Context, role []string, dir string) (*process, error) {
	arg, err := json.Marshal(map[string]string{
		"name": "etcd", "dir": filepath.Join(dir, "etcd"), "client": etcdClient, "peer": etcdPeer, "cluster": "etcd=http://" + etcdPeer,
	})
	if err != nil {
		return nil, err
	}
	p, err := start(append(append([]string{}, role...), string(arg)), filepath.Join(dir, "etcd.log"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		text, err := os.ReadFile(p.log)
		if err == nil && bytes.Contains(text, []byte("ready\n")) {
			return p, nil
		}
		select {
		case <-p.ended:
			return p, fmt.Errorf("etcd ended at once:\n%s", p.tail())
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return p, fmt.Errorf("etcd did not get ready: %w\n%s", ctx.Err(), p.tail())
		}
	}
}

// observer sees what happens to the records in etcd, and when.
type observer struct {
	store *etcd.Store
	seen  chan seen
	end   context.CancelFunc
	ended chan struct{}
}

// seen is a change of a session's record.
type seen struct {
	store.Event
	at time.Time
}

func newObserver(ctx context.Context) (*observer, error) {
	s, err := etcd.Dial(ctx, etcd.Config{Endpoints: []string{etcdClient}})
	if err != nil {
		return nil, err
	}
	_, from, err := s.List(ctx)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	life, end := context.WithCancel(context.Background())
	o := &observer{store: s, seen: make(chan seen, 4096), end: end, ended: make(chan struct{})}
	events := s.Watch(life, from)
	go func() {
		defer close(o.ended)
		for e := range events {
			select {
			case o.seen <- seen{e, time.Now()}:
			default: // the reader does not need so many
			}
		}
	}()
	return o, nil
}

// forget drops what was seen up to now.
func (o *observer) forget() {
	for {
		select {
		case <-o.seen:
		default:
			return
		}
	}
}

// life is when what happened to a session's record that moved.
type life struct {
	gone, claimed, ready time.Time
	owner                holdfast.Owner // when it was ready
}

// await waits until the session is ready in another life than that of the epoch.
func (o *observer) await(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch) (l life, err error) {
	for {
		select {
		case e := <-o.seen:
			switch {
			case e.Key != key:
			case e.Deleted:
				l.gone = e.at
			case e.Owner.Epoch == epoch:
			case e.Owner.State == holdfast.Claimed:
				l.claimed = e.at
			case e.Owner.State == holdfast.Ready:
				l.ready, l.owner = e.at, e.Owner
				return l, nil
			}
		case <-ctx.Done():
			return l, fmt.Errorf("session %s did not come up again: %w", key, ctx.Err())
		}
	}
}

func (o *observer) close() error {
	o.end()
	<-o.ended
	return o.store.Close()
}
