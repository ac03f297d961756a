package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// One container per key, for many keys at once and for many requests of one key.
func TestManyKeysAtOnceAndOneKeyTwentyTimes(t *testing.T) {
	keys := labtest.Count(15, 50)
	h := newHost(t, "")
	h.start()
	// An image on a page of another site boots nothing.
	if res, body := h.getWith("/s/cross/", http.Header{"Sec-Fetch-Site": {"cross-site"}}); res.StatusCode != http.StatusForbidden {
		t.Errorf("a page of another site: %s %s", res.Status, body)
	}
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() { h.open(fmt.Sprintf("k%d", i)) })
	}
	for range 20 {
		wg.Go(func() { h.open("one") })
	}
	wg.Wait()
	got := h.running()
	if len(got) != keys+1 {
		t.Errorf("%d of %d keys have a container", len(got), keys+1)
	}
	for key, ids := range got {
		if len(ids) != 1 {
			t.Errorf("%s has %d containers", key, len(ids))
		}
	}
	for _, s := range h.sessions() {
		if s.State != holdfast.Ready {
			t.Errorf("%s is %s", s.Key, s.State)
		}
	}
}

func TestKilledAgentLosesNothing(t *testing.T) { eachPool(t, pooled, killedAgentLosesNothing) }

func killedAgentLosesNothing(t *testing.T, pool string) {
	h := newPoolHost(t, pool)
	h.start()
	var wg sync.WaitGroup
	sessions := labtest.Count(4, 20)
	for i := range sessions {
		wg.Go(func() { h.open(fmt.Sprintf("k%d", i)) })
	}
	wg.Wait()
	before := h.running()
	if len(before) != sessions {
		t.Fatalf("%d sessions", len(before))
	}
	starts := startTimes(t, h, before)
	h.signal(syscall.SIGKILL)
	h.wait()
	h.start()
	if diff := cmp.Diff(before, h.running()); diff != "" {
		t.Errorf("containers before and after:\n%s", diff)
	}
	if diff := cmp.Diff(starts, startTimes(t, h, before)); diff != "" {
		t.Errorf("some were restarted:\n%s", diff)
	}
	for key := range before {
		h.open(key)
	}
	if diff := cmp.Diff(before, h.running()); diff != "" {
		t.Errorf("containers after they were used:\n%s", diff)
	}
}

// startTimes returns the time of each container's last start.
func startTimes(t *testing.T, h *host, running map[string][]string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, ids := range running {
		for _, id := range ids {
			c, err := h.api().Inspect(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			out[id] = c.StartedAt.String()
		}
	}
	return out
}

func TestAgentRestartKeepsAndHostShutdownDrains(t *testing.T) {
	eachPool(t, pooled, agentRestartKeepsAndHostShutdownDrains)
}

func agentRestartKeepsAndHostShutdownDrains(t *testing.T, pool string) {
	h := newPoolHost(t, pool)
	for _, keep := range []func(){
		func() { h.must("agent", "stop", "--keep") },
		func() { h.signal(syscall.SIGUSR2) },
	}[:labtest.Count(1, 2)] {
		h.start()
		h.open("alice")
		before := h.running()
		keep()
		if code := h.wait(); code != 0 {
			t.Errorf("exit code %d\n%s", code, &h.errs)
		}
		h.start()
		h.open("alice")
		if diff := cmp.Diff(before, h.running()); diff != "" {
			t.Errorf("keeping:\n%s", diff)
		}
		h.must("agent", "stop", "--keep")
		h.wait()
	}
	for _, drain := range []func(){
		func() { h.must("agent", "stop") },
		func() { h.signal(syscall.SIGTERM) },
		func() { h.signal(syscall.SIGINT) },
	}[:labtest.Count(1, 3)] {
		h.start()
		h.open("alice")
		h.open("bob")
		inits := h.inits()
		drain()
		if code := h.wait(); code != 0 {
			t.Errorf("exit code %d\n%s", code, &h.errs)
		}
		for key, pid := range inits {
			if alive(pid) {
				t.Errorf("the container of %s lives after a drain", key)
			}
		}
		for _, want := range []string{"stop claiming", "kill", "release", "2"} {
			if !strings.Contains(h.out.String(), want) {
				t.Errorf("the drain's report has no %q:\n%s", want, &h.out)
			}
		}
	}
	// And the next agent starts with nothing.
	h.start()
	if list := h.sessions(); len(list) != 0 {
		t.Errorf("sessions after a drain: %v", list)
	}
}

func TestCommandsAgainstARunningAgent(t *testing.T) {
	h := newHost(t, "")
	h.start()
	var s struct {
		Key   string
		State string
		Epoch int
	}
	if err := json.Unmarshal([]byte(h.must("session", "start", "alice", "--json")), &s); err != nil || s.Key != "alice" || s.State != "ready" || s.Epoch == 0 {
		t.Errorf("start: %+v, %v", s, err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"session", "ls"}, "alice"},
		{[]string{"session", "show", "alice"}, "ready"},
		{[]string{"session", "logs", "alice"}, "listening on :8080"},
		{[]string{"node", "ls"}, h.node},
		{[]string{"version"}, "holdfast"},
	} {
		if out := h.must(c.args...); !strings.Contains(out, c.want) {
			t.Errorf("holdfast %v has no %q:\n%s", c.args, c.want, out)
		}
	}
	// The image has only the server. Its program returns an exit code.
	if r := h.cli("session", "exec", "alice", "--", "/program", "-fail", "on purpose"); r.code != 1 || !strings.Contains(r.out+r.err, "told to fail: on purpose") {
		t.Errorf("exec: %+v", r)
	}
	if out := h.must("session", "stop", "alice"); !strings.Contains(out, "alice") {
		t.Errorf("stop printed %q", out)
	}
	if out := h.must("session", "show", "alice"); !strings.Contains(out, "a user stopped it") {
		t.Errorf("show of a session that is gone: %s", out)
	}
	if r := h.cli("session", "show", "bob"); r.code != 5 {
		t.Errorf("show of a session that never was: %+v", r)
	}
}

func TestDrainByHandAndTakingSessionsAgain(t *testing.T) {
	h := newHost(t, "")
	h.start()
	h.open("alice")
	var report holdfast.DrainReport
	if err := json.Unmarshal([]byte(h.must("drain", "--json")), &report); err != nil {
		t.Fatal(err)
	}
	if report.Owned != 1 || report.Dead != 1 || report.Released != 1 || len(report.Left) != 0 {
		t.Errorf("report %+v", report)
	}
	res, _ := h.get("/s/alice/")
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
		t.Errorf("while drained: %s, Retry-After %q", res.Status, res.Header.Get("Retry-After"))
	}
	h.must("node", "uncordon")
	h.open("alice")
}

func TestDrainOfTheWholeEngine(t *testing.T) {
	own := labtest.Private(t, lab.Options{})
	h := newHostOn(t, own.Host(), "")
	theirs, err := h.api().Create(t.Context(), engine.Spec{Name: "theirs", Image: labtest.TestServer, Restart: engine.RestartAlways})
	if err == nil {
		err = h.api().Start(t.Context(), theirs)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.start()
	h.open("alice")
	// A drain of the node does not affect containers of other tools.
	h.must("drain")
	if c, err := h.api().Inspect(t.Context(), theirs); err != nil || !c.Running() {
		t.Fatalf("another tool's container was touched: %+v, %v", c, err)
	}
	h.must("node", "uncordon")
	h.open("alice")
	var report holdfast.DrainReport
	if err := json.Unmarshal([]byte(h.must("drain", "--engine-all", "--json")), &report); err != nil {
		t.Fatal(err)
	}
	if report.Dead < 2 || report.Released != 1 || len(report.Left) != 0 { // including the processes that held networks
		t.Errorf("report %+v", report)
	}
	notBackBy(t, h, theirs)

	// The same without an agent, for operators without an agent.
	h.must("agent", "stop")
	h.wait()
	if err := h.api().Start(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	if err := h.api().SetRestartPolicy(t.Context(), theirs, engine.RestartAlways); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(h.must("drain", "--engine-all", "--json")), &report); err != nil {
		t.Fatal(err)
	}
	if report.Dead != 1 {
		t.Errorf("without an agent: %+v", report)
	}
	notBackBy(t, h, theirs)
}

// notBackBy waits until the engine has seen the container's end, after which it would have
// restarted it.
func notBackBy(t *testing.T, h *host, id string) {
	t.Helper()
	poll.Until(t, "the engine has seen it dead", func() bool {
		c, err := h.api().Inspect(t.Context(), id)
		return err == nil && c.State == "exited"
	})
	c, err := h.api().Inspect(t.Context(), id)
	if err != nil || c.Restart != engine.RestartNo {
		t.Errorf("restart policy %q, %v", c.Restart, err)
	}
}

func TestWebSocketThroughTheGateway(t *testing.T) {
	h := newHost(t, "")
	h.start()
	c, _, err := websocket.Dial(t.Context(), "ws://"+h.gateway+"/s/alice/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if err := c.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.Read(t.Context()); err != nil || string(got) != "hello" {
		t.Fatalf("echo %q, %v", got, err)
	}
	if list := h.sessions(); len(list) != 1 || list[0].Connections != 1 {
		t.Errorf("sessions %+v", list)
	}
	// The session leaves, and the client is told to reconnect.
	h.must("session", "stop", "alice")
	_, _, err = c.Read(t.Context())
	if code := websocket.CloseStatus(err); code != websocket.StatusServiceRestart {
		t.Errorf("closed with %v (%v)", code, err)
	}
}

// documented compares the metrics of a real agent, with their types, with docs/metrics.md.
func documented(t *testing.T, text string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) != 4 || words[1] != "TYPE" || !strings.HasPrefix(words[2], "holdfast_") {
			continue
		}
		n++
		if row := "| `" + words[2] + "` | " + words[3] + " |"; !strings.Contains(string(page), row) {
			t.Errorf("docs/metrics.md has no %s", row)
		}
	}
	if n < 30 {
		t.Errorf("/metrics has only %d metrics", n)
	}
}

func TestMetricsAndProbes(t *testing.T) {
	h := newHost(t, "")
	h.start()
	h.open("alice")
	h.must("drain")
	res, err := http.Get("http://" + h.apiTCP + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text := readAll(t, res.Body)
	for _, want := range []string{
		`holdfast_session_boot_seconds_count{outcome="ok",phase="total"} 1`,
		`holdfast_session_boot_seconds_count{outcome="ok",phase="start"} 1`,
		`holdfast_gateway_connects_total{kind="request"} 1`,
		`holdfast_gateway_connect_errors_total{reason=`,
		`holdfast_gateway_parked_requests 0`,
		`holdfast_drain_step_seconds_count{step="kill"} 1`,
		`holdfast_drains_total{outcome="clean"} 1`,
		`holdfast_kills_total{outcome="dead"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	documented(t, text)
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/v1/openapi.json": 200} {
		res, err := http.Get("http://" + h.apiTCP + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %s, want %d (the node is drained)", path, res.Status, want)
		}
	}
	// Without a token, TCP allows only reads.
	res, err = http.Post("http://"+h.apiTCP+"/v1/node/uncordon", "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("a change over TCP without a token: %s", res.Status)
	}
	if info, err := os.Stat(h.socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info.Mode(), err)
	}
}

func TestContainerThatEndsIsReported(t *testing.T) {
	h := newHost(t, `
templates:
  - name: bad
    image: `+labtest.TestServer+`
    port: 8080
    env: {TESTSERVER_FAIL: "no workspace <b>{key}</b>"}
`)
	h.start()
	res, body := h.get("/s/alice/")
	if res.StatusCode != http.StatusBadGateway || !strings.Contains(body, "no workspace <b>alice</b>") || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("%s, %s:\n%s", res.Status, res.Header.Get("Content-Type"), body)
	}
	r := h.cli("session", "start", "bob")
	if r.code != 7 || !strings.Contains(r.err, "exit code 1") || !strings.Contains(r.err, "no workspace <b>bob</b>") {
		t.Errorf("start: %+v", r)
	}
	poll.Until(t, "nothing is left of them", func() bool { return len(h.containers()) == 0 && len(slices.Collect(maps.Keys(h.running()))) == 0 })
}
