package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/watch"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// patientRoot is a procfs for an agent's doctor. The connection tracking table of its host is
// half full. While the host is degraded, the kernel drops connections.
type patientRoot struct {
	t    *testing.T
	dir  string
	mu   sync.Mutex
	sick bool
	lost int
}

// newPatient creates the procfs of a healthy host, for the duration of the test.
func newPatient(t *testing.T) *patientRoot {
	t.Helper()
	p := &patientRoot{t: t, dir: t.TempDir()}
	p.link("net:[1]", "1/ns/net")
	p.link("1", "self")
	for name, text := range map[string]string{
		"sys/kernel/osrelease": "6.1.0-test\n", "uptime": "1000.00 900.00\n", "1/cgroup": "0::/\n", "1/mountinfo": "1 1 0:1 / / rw - tmpfs none rw\n",
		"sys/net/netfilter/nf_conntrack_max": "1000\n", "sys/net/netfilter/nf_conntrack_count": "500\n",
	} {
		p.write(name, text)
	}
	p.count()
	done := make(chan struct{})
	var counting sync.WaitGroup
	counting.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.count()
			case <-done:
				return
			}
		}
	})
	t.Cleanup(func() { close(done); counting.Wait() })
	return p
}

func (p *patientRoot) write(name, text string) {
	path := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		p.t.Error(err)
		return
	}
	if err := os.Rename(path+".new", path); err != nil {
		p.t.Error(err)
	}
}

func (p *patientRoot) link(to, name string) {
	path := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Symlink(to, path); err != nil {
		p.t.Fatal(err)
	}
}

// count writes the statistics of the table, net/netfilter/nf_conntrack_standalone.c.
func (p *patientRoot) count() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sick {
		p.lost++
	}
	p.write("1/net/stat/nf_conntrack", fmt.Sprintf("entries drop early_drop\n000001f4 %08x 00000000\n", p.lost))
}

func (p *patientRoot) set(sick bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sick = sick
}

// doctorConfig makes the doctor examine such a host at short intervals, with a higher CPU
// limit than the default. On a busy machine the default limit pauses the doctor for a minute
// after a burst.
func doctorConfig(p *patientRoot, more string) string {
	return fmt.Sprintf("doctor: {every: 1s, burst: 1s, burst_every: 3s, look_every: 3s, cpu_share: 0.15, proc: %s, sys: %s, %s}\n", p.dir, p.dir, more)
}

// recordOf returns the record of a host, as another host sees it. On a busy machine the
// store may answer late.
func (h *host) recordOf(by *host) (record holdfast.Node) {
	h.t.Helper()
	poll.Until(h.t, "the record of "+h.node, func() bool {
		r := by.cli("node", "ls", "--json")
		if r.code != 0 {
			return false
		}
		var list []holdfast.Node
		if err := json.Unmarshal([]byte(r.out), &list); err != nil {
			h.t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(n holdfast.Node) bool { return string(n.ID) == h.node })
		if i >= 0 {
			record = list[i]
		}
		return i >= 0
	})
	return record
}

// A degraded node gets no new session, and after a while hands over its sessions: one node at
// a time, at most the configured share, and without a refused client. A healthy node returns
// to rotation.
func TestSickNodeIsOutOfRotation(t *testing.T) {
	labtest.NeedLong(t, "three nodes that become slow and recover; TestDoctorInTheAgent and package rotation test the parts")
	var patients []*patientRoot
	hosts := newFleetOf(t, 3, patient, func(int) string {
		p := newPatient(t)
		patients = append(patients, p)
		return doctorConfig(p, "drain: auto, drain_after: 5s, recover_after: 3s, max_share: 0.34")
	}, (*host).start)
	asked := 0
	ask := func(n int) (keys []string) {
		for range n {
			key := fmt.Sprintf("k%d", asked)
			hosts[asked%3].ask(key)
			keys, asked = append(keys, key), asked+1
		}
		return keys
	}
	for len(hosts[0].running()) == 0 {
		if ask(3); asked > 60 {
			t.Fatalf("none of %d sessions was placed on the node", asked)
		}
	}

	patients[0].set(true)
	poll.Until(t, "the degraded node reports it", func() bool { return hosts[0].recordOf(hosts[1]).Degraded != "" })
	if n := hosts[0].recordOf(hosts[1]); !strings.HasPrefix(n.Degraded, "conntrack-full: ") || n.DegradedSince.IsZero() {
		t.Errorf("%+v", n)
	}
	if n := hosts[1].recordOf(hosts[2]); n.Degraded != "" {
		t.Errorf("a healthy node: %+v", n)
	}
	time.Sleep(2 * time.Second) // the records that other nodes use are at most a second old
	for _, key := range ask(12) {
		if has, _ := owner(t, hosts, key); has == hosts[0] {
			t.Errorf("session %s was placed on the degraded node", key)
		}
	}

	poll.Until(t, "the degraded node has handed its sessions over", func() bool {
		return hosts[0].recordOf(hosts[1]).Draining && len(hosts[0].running()) == 0
	})
	for i := range asked { // through all gateways, including that of the degraded node
		key := fmt.Sprintf("k%d", i)
		hosts[i%3].ask(key)
		if ids := living(hosts, key); len(ids) != 1 {
			t.Errorf("%d containers run for %s", len(ids), key)
		}
	}

	// A second node is degraded. It stays in rotation, because of the maximum share.
	patients[1].set(true)
	poll.Until(t, "the second degraded node reports it", func() bool { return hosts[1].recordOf(hosts[2]).Degraded != "" })
	before := len(hosts[1].running())
	poll.Until(t, "it still accepts sessions", func() bool { ask(3); return len(hosts[1].running()) > before })
	time.Sleep(8 * time.Second) // longer than drain_after
	if n := hosts[1].recordOf(hosts[2]); n.Draining {
		t.Errorf("two of three nodes are out of rotation: %+v", n)
	}

	patients[0].set(false)
	poll.Until(t, "the first node is healthy again", func() bool {
		n := hosts[0].recordOf(hosts[1])
		return n.Degraded == "" && !n.Draining
	})
	poll.Until(t, "the other node is out of rotation", func() bool { return hosts[1].recordOf(hosts[2]).Draining && len(hosts[1].running()) == 0 })
	poll.Until(t, "the first node has sessions again", func() bool { ask(3); return len(hosts[0].running()) > 0 })
}

// The API returns the findings of the agent's doctor, also those from before a restart.
func TestDoctorInTheAgent(t *testing.T) {
	p := newPatient(t)
	h := newHost(t, doctorConfig(p, "role: test"))
	h.start()
	status := func() (s watch.Status) {
		r := h.cli("doctor", "status", "--json")
		if err := json.Unmarshal([]byte(r.out), &s); err != nil || r.code != 0 && r.code != 9 {
			t.Fatalf("%v: %+v", err, r)
		}
		return s
	}
	poll.Until(t, "there are rounds", func() bool { return status().Cost.Rounds > 1 })
	if s := status(); len(s.Findings) > 0 {
		t.Errorf("a healthy host: %+v", s.Findings)
	}
	p.set(true)
	poll.Until(t, "it is found", func() bool { return len(status().Findings) == 1 })
	poll.Until(t, "the node is degraded", func() bool { return strings.Contains(h.cli("doctor", "status").out, "degraded for ") })
	if r := h.cli("doctor", "status"); r.code != 9 || !strings.Contains(r.out, "CRITICAL") || !strings.Contains(r.out, "conntrack-full") {
		t.Errorf("status: %+v", r)
	}
	// Baselines are kept by the agent, and survive it.
	h.must("doctor", "baseline", "save", "here", "--for", "1s", "--force", "--role", "test")
	h.must("agent", "stop", "--keep")
	h.wait()
	p.set(false)
	h.start()
	if out := h.must("doctor", "history"); !strings.Contains(out, "conntrack-full") || !strings.Contains(out, "began") {
		t.Errorf("history:\n%s", out)
	}
	if r := h.cli("doctor", "history", "--since", "yesterday"); r.code != 2 {
		t.Errorf("%+v", r)
	}
	if out := h.must("doctor", "baseline", "ls"); !strings.Contains(out, "here") {
		t.Errorf("baselines:\n%s", out)
	}
	h.must("doctor", "baseline", "rm", "here")
	if r := h.cli("doctor", "baseline", "rm", "here"); r.code != 5 {
		t.Errorf("%+v", r)
	}
	poll.Until(t, "its record is in the store", func() bool { return strings.Contains(h.must("doctor", "fleet"), "0 of 1 nodes have 5 spin-ups") })
}
