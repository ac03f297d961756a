package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/coder/websocket"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/spinup"
	"holdfast/test/lab/echoserver"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// quick is a timing with a takeover of six seconds. Shorter timings do not work beside other
// tests: a node without CPU time for a second would correctly kill its sessions.
const quick = "renew: 300ms, fence: 3s, kill_budget: 2s, ttl: 6s"

// patient is a timing for tests without a takeover. On a busy machine no node loses its
// lease.
const patient = "renew: 1s, fence: 20s, kill_budget: 5s, ttl: 30s"

// newFleet starts nodes that share an etcd and an engine. It creates the certificates by
// `holdfast node ca`.
func newFleet(t *testing.T, n int, timing, extra string) []*host {
	t.Helper()
	return newFleetOf(t, n, timing, func(int) string { return extra }, (*host).start)
}

// newFleetOf is newFleet with additional configuration for each node, and a function that
// starts each node.
func newFleetOf(t *testing.T, n int, timing string, extra func(i int) string, start ...func(*host)) []*host {
	t.Helper()
	if labtest.OnContainerd() {
		return newFleetOn(t, "", n, timing, extra, start...)
	}
	return newFleetOn(t, labtest.Engine(t).Host(), n, timing, extra, start...)
}

// newFleetOn is newFleetOf on another engine. "" is the package's containerd, with a
// namespace for each node.
func newFleetOn(t *testing.T, dockerHost string, n int, timing string, extra func(i int) string, start ...func(*host)) []*host {
	t.Helper()
	return newFleetWith(t, func(int) string { return dockerHost }, nil, n, timing, extra, start...)
}

// newFleetWith is newFleetOn with an engine for each node, and with runtimes, by name, on
// containerd.
func newFleetWith(t *testing.T, dockerHost func(i int) string, runtimes map[string]string, n int, timing string, extra func(i int) string, start ...func(*host)) []*host {
	t.Helper()
	client := labtest.FreePort(t)
	etcd := startEtcd(t, t.TempDir(), client, labtest.FreePort(t))
	t.Cleanup(etcd.Close)
	ca := filepath.Join(t.TempDir(), "fleet")
	hosts := make([]*host, n)
	for i := range hosts {
		h := newNode(t, dockerHost(i), "-"+strconv.Itoa(i))
		if h.docker == "" {
			c := labtest.ContainerdNode(t, i)
			c.Runtimes = runtimes
			h.isOnContainerd(c)
		}
		if i == 0 {
			h.must("node", "init-ca", "--out", ca)
		}
		certs := filepath.Join(h.dir, "certs")
		h.must("node", "join", "--ca", ca, "--node", h.node, "--out", certs)
		h.configure(fmt.Sprintf("store: {endpoints: ['%s'], %s}\nfleet: {listen: '%s', certificates: %s}\n%s",
			client, timing, labtest.FreePort(t), certs, extra(i)))
		hosts[i] = h
	}
	for _, h := range hosts {
		for _, f := range start {
			f(h)
		}
	}
	for _, h := range hosts {
		poll.Until(t, "the nodes know each other", func() bool {
			nodes := h.nodes()
			return len(nodes) == n && !slices.ContainsFunc(nodes, func(n holdfast.Node) bool { return n.Draining })
		})
	}
	return hosts
}

// nodes returns the nodes that the host's agent knows.
func (h *host) nodes() []holdfast.Node {
	h.t.Helper()
	var list []holdfast.Node
	if err := json.Unmarshal([]byte(h.must("node", "ls", "--json")), &list); err != nil {
		h.t.Fatal(err)
	}
	return list
}

// ask requests a session through the host's gateway and returns the name of the container
// that answers.
func (h *host) ask(key string) echoserver.Reply {
	h.t.Helper()
	res, body := h.get("/s/" + key + "/")
	var reply echoserver.Reply
	if err := json.Unmarshal([]byte(body), &reply); res.StatusCode != http.StatusOK || err != nil || reply.Session != key {
		h.t.Errorf("%s at %s: %s, %v: %s", key, h.node, res.Status, err, body)
	}
	return reply
}

// owner returns the host that owns the session.
func owner(t *testing.T, hosts []*host, key string) (*host, api.Session) {
	t.Helper()
	for _, s := range hosts[0].sessions() {
		for _, h := range hosts {
			if string(s.Key) == key && string(s.Node) == h.node {
				return h, s
			}
		}
	}
	t.Fatalf("no node has session %s", key)
	return nil, api.Session{}
}

// besides returns all hosts except one.
func besides(hosts []*host, but *host) []*host {
	var out []*host
	for _, h := range hosts {
		if h != but {
			out = append(out, h)
		}
	}
	return out
}

// living returns the containers that run for a key, on all nodes.
func living(hosts []*host, key string) (ids []string) {
	for _, h := range hosts {
		ids = append(ids, h.running()[key]...)
	}
	return ids
}

func TestAnyNodeServesAnyKey(t *testing.T) {
	hosts := newFleet(t, 3, patient, "")
	var asked sync.WaitGroup
	epochs := make([]string, 30)
	for i := range epochs {
		asked.Go(func() { epochs[i] = hosts[i%3].ask("alice").Epoch })
	}
	asked.Wait()
	for i, e := range epochs {
		if e != epochs[0] || e == "" {
			t.Errorf("request %d was served by epoch %q, another by %q", i, e, epochs[0])
		}
	}
	if ids := living(hosts, "alice"); len(ids) != 1 {
		t.Errorf("%d containers run for one key: %v", len(ids), ids)
	}
	// A page of another site reaches the session through every node, and boots none.
	for _, h := range hosts {
		for path, want := range map[string]int{"/s/alice/": http.StatusOK, "/s/cross/": http.StatusForbidden} {
			if res, body := h.getWith(path, http.Header{"Sec-Fetch-Site": {"cross-site"}}); res.StatusCode != want {
				t.Errorf("%s by %s: %s %s", path, h.node, res.Status, body)
			}
		}
	}
	// Placement spreads sessions: of the requests to one node, other nodes get some.
	var boots sync.WaitGroup
	spread := labtest.Count(9, 24)
	for i := range spread {
		boots.Go(func() { hosts[0].ask(fmt.Sprintf("k%d", i)) })
	}
	boots.Wait()
	for _, h := range hosts {
		if n := len(h.running()); n == 0 || n > spread*5/6 {
			t.Errorf("%s has %d of %d sessions", h.node, n, spread+1)
		}
	}
	// One node answers for the spin-ups of all nodes.
	poll.Until(t, "all sessions are in the fleet's statistics", func() bool {
		var stats spinup.FleetReport
		if err := json.Unmarshal([]byte(hosts[1].must("spinup", "stats", "--fleet", "--by", "node", "--kind", "session", "--json")), &stats); err != nil {
			t.Fatal(err)
		}
		if stats.Nodes != 3 || len(stats.NoAnswer) > 0 {
			t.Fatalf("%d nodes answered, not %v", stats.Nodes, stats.NoAnswer)
		}
		return stats.Count == spread+1 && len(stats.Groups) == 3
	})
	// Every node answers questions that only the owner can answer.
	has, _ := owner(t, hosts, "alice")
	other := besides(hosts, has)[0]
	init := has.inits()["alice"]
	if out := other.must("session", "logs", "alice"); !strings.Contains(out, "listening") {
		t.Errorf("the log from another node: %q", out)
	}
	other.must("session", "stop", "alice")
	if alive(init) {
		t.Error("the session still runs after a stop from another node")
	}
}

func TestDrainMovesSessionsWithoutRefusals(t *testing.T) {
	eachPool(t, warm, drainMovesSessionsWithoutRefusals)
}

func drainMovesSessionsWithoutRefusals(t *testing.T, pool string) {
	hosts := newPoolFleet(t, 3, patient, pool)
	keys := []string{"a", "b", "c", "d"}
	for _, k := range keys {
		hosts[0].ask(k)
	}
	leaving, before := owner(t, hosts, "a")
	others := besides(hosts, leaving)

	// A WebSocket through another node ends with 1012, and the client can reconnect at
	// once.
	url := "ws://" + others[0].gateway + "/s/a/ws"
	ws, _, err := websocket.Dial(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()

	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i, k := range keys {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					hosts[i%3].ask(k) // through the leaving node, too
				}
			}
		})
	}
	var report struct{ Owned, Released int }
	if err := json.Unmarshal([]byte(others[1].must("node", "drain", leaving.node, "--json")), &report); err != nil {
		t.Fatal(err)
	}
	_, _, err = ws.Read(t.Context())
	if websocket.CloseStatus(err) != websocket.StatusServiceRestart {
		t.Errorf("the WebSocket of a session that moved ended with %v, want 1012", err)
	}
	again, _, err := websocket.Dial(t.Context(), url, nil)
	if err != nil {
		t.Errorf("connecting again at once: %v", err)
	} else {
		again.CloseNow()
	}
	close(stop)
	clients.Wait()
	if report.Owned == 0 || report.Released != report.Owned {
		t.Errorf("%+v", report)
	}
	now, after := owner(t, hosts, "a")
	if now == leaving || after.Epoch <= before.Epoch {
		t.Errorf("%v became %v", before, after)
	}
	poll.Until(t, "no container is left on the drained node, claimed or not", func() bool {
		return len(leaving.containers()) == 0 && (labtest.OnContainerd() || leaving.metric("holdfast_networks_used") == "0")
	})
	leaving.must("node", "uncordon")
}

// All processes of a node, including its deadman, die at once while clients request its
// sessions. The clients wait until the lease has expired, and another node serves them.
func TestMachineThatVanishes(t *testing.T) {
	labtest.NeedLong(t, "test/fleet TestEverythingHappens kills all processes of a node")
	hosts := newFleet(t, 3, quick, "")
	hosts[0].ask("alice")
	gone, before := owner(t, hosts, "alice")
	inits := gone.inits()
	gone.kill()
	gone.endDeadman()
	if err := syscall.Kill(inits["alice"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var clients sync.WaitGroup
	for _, h := range besides(hosts, gone) {
		for range 5 {
			clients.Go(func() {
				if r := h.ask("alice"); r.Epoch == "" || r.Epoch == fmt.Sprint(before.Epoch) {
					t.Errorf("served by epoch %q after %d had died", r.Epoch, before.Epoch)
				}
			})
		}
	}
	clients.Wait()
}

// stopped reports whether every thread of the agent is stopped (proc_pid_stat(5)).
func (h *host) stopped() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", h.cmd.Process.Pid)) // the pattern is well-formed
	for _, file := range threads {
		b, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(b), ") T ") {
			return false
		}
	}
	return len(threads) > 0
}

// Only the deadman kills the containers of a stopped agent, before the lease expires and
// other nodes claim the sessions.
func TestAgentThatHangs(t *testing.T) {
	labtest.NeedLong(t, "test/fleet TestEverythingHappens stops agents")
	t.Run("stopped", func(t *testing.T) {
		eachPool(t, warm, func(t *testing.T, pool string) { agentThatHangs(t, pool, syscall.SIGSTOP) })
	})
	t.Run("killed", func(t *testing.T) {
		eachPool(t, pooled, func(t *testing.T, pool string) { agentThatHangs(t, pool, syscall.SIGKILL) })
	})
}

func agentThatHangs(t *testing.T, pool string, sig syscall.Signal) {
	hosts := newPoolFleet(t, 2, quick, pool)
	hosts[0].ask("alice")
	hung, before := owner(t, hosts, "alice")
	init, waiting := hung.inits()["alice"], hung.waiting()
	if pool == warm && len(waiting) == 0 {
		t.Error("the pool is empty: the deadman has only a session to kill")
	}
	if joined := hung.joined("alice"); joined != (pool != bridge && !labtest.OnContainerd()) {
		t.Errorf("alice has joined a network: %v", joined)
	}
	hung.signal(sig)
	if sig == syscall.SIGSTOP {
		poll.Until(t, "every thread of the agent is stopped", hung.stopped)
	}
	r := besides(hosts, hung)[0].ask("alice")
	if alive(init) {
		t.Error("another node serves the session while its old container runs")
	}
	for _, pid := range waiting {
		if alive(pid) {
			t.Error("another node serves the session while unclaimed containers run on the node")
		}
	}
	if n, _ := strconv.ParseInt(r.Epoch, 10, 64); n <= int64(before.Epoch) {
		t.Errorf("epoch %s after %d", r.Epoch, before.Epoch)
	}
	if sig == syscall.SIGSTOP {
		hung.signal(syscall.SIGCONT)
		poll.Until(t, "the agent continues", func() bool { return len(besides(hosts, hung)[0].nodes()) == 2 })
	} else {
		hung.wait()
		hung.start()
	}
	hung.ask("alice")
	if ids := living(hosts, "alice"); len(ids) != 1 {
		t.Errorf("%d containers run for one key", len(ids))
	}
}

// An agent that restarts before the fence loses nothing and keeps its deadman.
func TestUpgradeUnderADeadman(t *testing.T) {
	labtest.NeedLong(t, "TestServiceIsRestarted restarts an agent")
	hosts := newFleet(t, 2, patient, "")
	hosts[0].ask("alice")
	has, before := owner(t, hosts, "alice")
	deadman := has.deadman()
	has.must("agent", "stop", "--keep")
	has.wait()
	if !alive(deadman) {
		t.Fatal("the deadman ended with its agent")
	}
	has.start()
	if again := has.deadman(); again != deadman {
		t.Errorf("deadman %d became %d", deadman, again)
	}
	if r := has.ask("alice"); r.Epoch != fmt.Sprint(before.Epoch) {
		t.Errorf("epoch %s after %d: the session did not survive an upgrade", r.Epoch, before.Epoch)
	}
}

func TestRollingReplacement(t *testing.T) {
	labtest.NeedLong(t, "TestSessionsAreReplaced has one node")
	hosts := newFleet(t, 2, patient, "")
	keys := []string{"alice", "bob", "carol"}
	for _, k := range keys {
		hosts[0].ask(k)
	}
	_, before := owner(t, hosts, "alice")
	out := hosts[1].must("session", "replace", "--all", "--parallel", "2")
	past := hosts[1].must("session", "replacements")
	for _, k := range keys {
		if !regexp.MustCompile(`(?m)^` + k + ` +`).MatchString(out) {
			t.Errorf("%s has no line in the report:\n%s", k, out)
		}
		if !regexp.MustCompile(`(?m)^\S+ +` + k + ` +`).MatchString(past) { // after the age
			t.Errorf("%s has no line in the past replacements:\n%s", k, past)
		}
	}
	_, after := owner(t, hosts, "alice")
	if after.Epoch <= before.Epoch || after.Boot.Total() <= 0 {
		t.Errorf("%+v became %+v", before, after)
	}
}
