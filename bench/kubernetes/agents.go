package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"holdfast/bench"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/node"
	"holdfast/internal/hosts/kube/survey"
)

const (
	startRate  = 100              // agents that start per second
	doctorLook = 10 * time.Second // interval of a doctor's findings
	startLimit = 5 * time.Minute  // from the start of the last agent until all have reported their nodes
	realLimit  = 2 * time.Minute  // the same for the real agent
)

// simulation has the agents of a cluster.
type simulation struct {
	o       Options
	cluster *cluster
	record  *ranking.Record
	agents  []*node.Reporter
	clients []*kube.Client
	cancel  context.CancelFunc
	ended   sync.WaitGroup
	real    *exec.Cmd
	output  strings.Builder // of the real agent
	ownRSS  int64           // of this process, before the agents

	idle, steady window
}

// startAgents starts the simulated agents one after another, and waits until all have
// reported their nodes.
func (s *simulation) startAgents(ctx context.Context) error {
	debug.FreeOSMemory()
	var err error
	if _, s.ownRSS, err = bench.ProcessUsage(os.Getpid()); err != nil {
		return err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	if s.record == nil {
		s.record = &ranking.Record{Kernel: "6.1.0-bench", Facts: map[string]float64{"memcg.dying": 31, "reclaim.p50": 0.1}}
	}
	tick := time.NewTicker(time.Second / startRate)
	defer tick.Stop()
	for name, token := range s.cluster.tokens {
		if name == realNode {
			continue
		}
		client, err := kube.New(s.cluster.config(token), kube.Options{Agent: "holdfast-agent/bench", Idle: s.o.Idle, Dial: s.cluster.dial})
		if err != nil {
			return err
		}
		r := node.New(client, node.Config{Node: name, Namespace: namespace, Renew: s.o.Renew, Record: func() *ranking.Record { return s.record }}, nil, slog.New(slog.DiscardHandler))
		s.agents, s.clients = append(s.agents, r), append(s.clients, client)
		s.ended.Go(func() { _ = r.Run(life) }) // it returns only at its end
		s.ended.Go(func() { doctor(life, r) })
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.await(ctx)
}

// doctor reports at each interval that it found nothing.
func doctor(ctx context.Context, r *node.Reporter) {
	for ctx.Err() == nil {
		r.Found(nil)
		_ = kube.Sleep(ctx, doctorLook) // the error is ctx's
	}
}

// await waits until each node's lease has a record.
func (s *simulation) await(ctx context.Context) error {
	deadline := time.Now().Add(startLimit)
	for {
		records, err := survey.Records(ctx, s.cluster.admin, namespace)
		if err != nil {
			return err
		}
		missing := 0
		for name := range s.cluster.tokens {
			if records[name] == nil && (name != realNode || s.real != nil) {
				missing++
			}
		}
		if missing == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d agents have not told of their nodes within %v", missing, s.o.Nodes, startLimit)
		}
		if err := kube.Sleep(ctx, 2*time.Second); err != nil {
			return err
		}
	}
}

// startReal starts the agent as its pod would run. The simulated agents use its report of
// this host.
func (s *simulation) startReal(ctx context.Context) error {
	if s.o.Agent == nil {
		return nil
	}
	c := s.cluster
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"b","contexts":[{"name":"b","context":{"cluster":"b","user":"b"}}],`+
		`"clusters":[{"name":"b","cluster":{"server":%q,"certificate-authority":%q}}],"users":[{"name":"b","user":{"token":%q}}]}`, c.server.URL, c.server.CAFile(), c.tokens[realNode])
	if err := os.WriteFile(c.file("kubeconfig"), []byte(text), 0o600); err != nil {
		return err
	}
	argv := append(append([]string{}, s.o.Agent...), "--kubernetes", "--kubeconfig", c.file("kubeconfig"), "--namespace", namespace, "--node", realNode,
		"--api", "none", "--data-dir", c.file("agent-data"), "--run-dir", c.file("agent-run"))
	s.real = exec.Command(argv[0], argv[1:]...)
	s.real.Stdout, s.real.Stderr = &s.output, &s.output
	s.real.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.real.WaitDelay = 10 * time.Second
	if err := s.real.Start(); err != nil {
		s.real = nil
		return fmt.Errorf("start an agent: %w", err)
	}
	deadline := time.Now().Add(realLimit)
	for s.record == nil {
		records, err := survey.Records(ctx, c.admin, namespace)
		if err != nil {
			return err
		}
		s.record = records[realNode]
		if time.Now().After(deadline) {
			return fmt.Errorf("the agent has not told of its node within %v", realLimit)
		}
		if err := kube.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	return nil
}

// stop ends all agents.
func (s *simulation) stop() {
	if s.cancel != nil {
		s.cancel()
	}
	s.ended.Wait()
	for _, c := range s.clients {
		c.Close()
	}
	if s.real != nil {
		_ = s.real.Process.Signal(syscall.SIGTERM) // an error: it has ended
		_ = s.real.Wait()
		s.real = nil
	}
}

// alive reports whether the real agent still runs.
func (s *simulation) alive() error {
	if s.real == nil {
		return nil
	}
	if err := s.real.Process.Signal(syscall.Signal(0)); err != nil {
		return errors.New("the agent has ended: " + s.output.String())
	}
	return nil
}
