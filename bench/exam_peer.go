package bench

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"holdfast/internal/platform/linux/deathsig"
	"holdfast/test/lab"
)

// peerReady bounds the start of a peer with its warm-up, and peerEnd its end.
const (
	peerReady = 45 * time.Minute
	peerEnd   = 30 * time.Second
)

// peer is another tool that runs beside the doctor during the examination.
type peer struct {
	name  string
	ready chan struct{} // closed when it has printed "ready"
	ended chan struct{} // closed when the program has ended and all its lines are read
	stop  func()        // ends it and returns when it has ended

	mu    sync.Mutex
	lines []string // each is an alarm
}

// startPeers starts all peers, and returns when each has printed "ready".
func (x *examBench) startPeers(ctx context.Context) error {
	for _, p := range x.exam.Peers {
		name, program, _ := strings.Cut(p, "=")
		env, err := x.peerEnv(name)
		if err != nil {
			return err
		}
		started, err := startPeer(name, program, env)
		if err != nil {
			return fmt.Errorf("start the peer %s: %w", name, err)
		}
		x.peers = append(x.peers, started)
	}
	ctx, cancel := context.WithTimeout(ctx, peerReady)
	defer cancel()
	for _, p := range x.peers {
		select {
		case <-p.ready:
		case <-p.ended:
			return fmt.Errorf("the peer %s ended during its start", p.name)
		case <-ctx.Done():
			return fmt.Errorf("the peer %s did not print ready: %w", p.name, ctx.Err())
		}
	}
	return nil
}

// peerEnv returns a peer's environment. $JOIN moves it out of the control groups of the bench: a
// finding about the peer is then about another user of the machine.
func (x *examBench) peerEnv(name string) ([]string, error) {
	dir := filepath.Join(x.boot.dir, "peer-"+name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	address, err := lab.FreePort()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	var join []string
	for _, group := range x.home.back {
		join = append(join, filepath.Join(group, "cgroup.procs"))
	}
	return append(x.env(), "JOIN="+strings.Join(join, " "), "PEER_DIR="+dir, "PEER_PORT="+port, "ENGINE_LOG="+x.boot.lab.LogFile()), nil
}

// startPeer starts a peer's program. stop ends it.
func startPeer(name, program string, env []string) (*peer, error) {
	cmd := exec.Command("/bin/sh", "-c", joining, "peer", program)
	cmd.Env = env
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	exited, err := deathsig.Start(cmd, syscall.SIGTERM)
	w.Close()
	if err != nil {
		r.Close()
		return nil, err
	}
	p := &peer{name: name, ready: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		p.read(r)
		r.Close() // after a line that is too long, the program must not wait for a reader
		<-exited
	}()
	p.stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-p.ended:
		case <-time.After(peerEnd):
			_ = cmd.Process.Kill()
			r.Close() // its children may hold the other end
			<-p.ended
		}
	}
	return p, nil
}

// read collects the lines after "ready" until the end of the program.
func (p *peer) read(r *os.File) {
	ready := false
	for lines := bufio.NewScanner(r); lines.Scan(); {
		switch line := strings.TrimSpace(lines.Text()); {
		case !ready && line == "ready":
			ready = true
			close(p.ready)
		case line != "":
			p.mu.Lock()
			p.lines = append(p.lines, line)
			p.mu.Unlock()
		}
	}
}

// heard returns the number of lines so far, by peer.
func (x *examBench) heard() map[string]int {
	n := make(map[string]int)
	for _, p := range x.peers {
		p.mu.Lock()
		n[p.name] = len(p.lines)
		p.mu.Unlock()
	}
	return n
}

// since returns the lines after those that were heard, by peer. It fails if a peer has ended.
func (x *examBench) since(heard map[string]int) (map[string][]string, error) {
	said := make(map[string][]string)
	for _, p := range x.peers {
		select {
		case <-p.ended:
			return nil, fmt.Errorf("the peer %s has ended", p.name)
		default:
		}
		p.mu.Lock()
		said[p.name] = append([]string{}, p.lines[heard[p.name]:]...)
		p.mu.Unlock()
	}
	return said, nil
}

// close ends the peers before the engine.
func (x *examBench) close() error {
	for _, p := range x.peers {
		p.stop()
	}
	if x.accuracyBench == nil {
		return nil
	}
	return x.accuracyBench.close()
}

// PeerVerdict is what a peer said during a fault.
type PeerVerdict struct {
	Alarms    int      `json:"alarms"`
	Container bool     `json:"container"` // one of them names a culprit
	Said      []string `json:"said"`      // the first of them
}

// judgePeer judges the alarms that a peer raised during a fault. The cause is not judged: no
// peer has names for causes.
func judgePeer(said []string, s *faultStage) PeerVerdict {
	v := PeerVerdict{Alarms: len(said), Said: said[:min(len(said), maxEvidence)]}
	for _, line := range said {
		for _, t := range s.fault.Truth {
			v.Container = v.Container || s.mentions(line, t.Culprit)
		}
	}
	return v
}

// shortID is the number of characters of a container's id that name it.
const shortID = 12

// mentions reports whether a line has the name or the id of a culprit's container, or the name
// of the control group of the program outside containers.
func (s *faultStage) mentions(line, culprit string) bool {
	if culprit == culpritHost {
		return strings.Contains(line, path.Base(s.group))
	}
	for name := range s.names[culprit] {
		word := regexp.MustCompile(`(^|[^\w-])` + regexp.QuoteMeta(name) + `($|[^\w-])`)
		if id := s.ids[name]; word.MatchString(line) || len(id) >= shortID && strings.Contains(line, id[:shortID]) {
			return true
		}
	}
	return false
}

// PeerHealthy counts what a peer said on healthy hosts.
type PeerHealthy struct {
	Wrong  int      `json:"wrong"` // looks with an alarm
	Alarms int      `json:"alarms"`
	Said   []string `json:"said"` // the first of them
}

func (h *PeerHealthy) add(said []string, host string) {
	h.Alarms += len(said)
	if len(said) > 0 {
		h.Wrong++
	}
	for _, line := range said {
		if len(h.Said) < maxEvidence {
			h.Said = append(h.Said, host+": "+line)
		}
	}
}
