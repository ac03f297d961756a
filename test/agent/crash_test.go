package agent

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// settled waits until exactly one container runs for each session that the agent owns, and
// returns the keys.
func (h *host) settled() []string {
	h.t.Helper()
	var keys []string
	poll.Until(h.t, "every record has one container and every container a record", func() bool {
		owned := map[string][]string{}
		for _, s := range h.sessions() {
			if s.State != holdfast.Ready || s.Epoch == 0 {
				return false
			}
			owned[string(s.Key)] = []string{s.ContainerID}
		}
		keys = slices.Sorted(maps.Keys(owned))
		return cmp.Equal(owned, h.running())
	})
	return keys
}

// kill sends SIGKILL to the agent.
func (h *host) kill() {
	h.t.Helper()
	h.signal(syscall.SIGKILL)
	h.wait()
}

// knock requests a session and ignores the answer.
func (h *host) knock(key string) {
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	if res, err := client.Get("http://" + h.gateway + "/s/" + key + "/"); err == nil {
		res.Body.Close()
	}
}

// moments returns all of these times, in ms, with -long, otherwise every third one.
func moments(all ...int) []int {
	if labtest.Long() {
		return all
	}
	var some []int
	for i := 0; i < len(all); i += 3 {
		some = append(some, all[i])
	}
	return some
}

// The agent is killed at different times after three requests for sessions. A boot takes a
// few hundred milliseconds.
func TestAgentKilledInTheMiddleOfBoots(t *testing.T) {
	labtest.NeedLong(t, "test/fleet TestEverythingHappens kills agents while sessions boot")
	eachPool(t, warm, agentKilledInTheMiddleOfBoots)
}

func agentKilledInTheMiddleOfBoots(t *testing.T, pool string) {
	h := newPoolHost(t, pool)
	when := moments(5, 50, 150, 300, 450)
	if pool == warm { // a claim takes a few milliseconds; one of the three sessions boots
		when = moments(1, 2, 5, 10, 30, 150)
	}
	for _, after := range when {
		h.start()
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() { h.knock(fmt.Sprintf("k%d", i)) })
		}
		time.Sleep(time.Duration(after) * time.Millisecond)
		h.kill()
		wg.Wait()
		h.start()
		h.settled()
		for i := range 3 {
			h.open(fmt.Sprintf("k%d", i))
		}
		if keys := h.settled(); len(keys) != 3 {
			t.Errorf("killed after %dms: %v", after, keys)
		}
		h.must("agent", "stop")
		h.wait()
	}
	// Also containers that the engine created after the kill of its agent.
	h.start()
	poll.Until(t, "no container is left in whatever state", func() bool { return len(h.claimed()) == 0 })
}

func TestAgentKilledInTheMiddleOfStops(t *testing.T) {
	labtest.NeedLong(t, "TestAgentKilledInTheMiddleOfADrain kills an agent while sessions end")
	eachPool(t, pooled, agentKilledInTheMiddleOfStops)
}

func agentKilledInTheMiddleOfStops(t *testing.T, pool string) {
	h := newPoolHost(t, pool)
	for _, after := range moments(0, 1, 3, 10, 30, 100) {
		h.start()
		h.open("stays")
		h.open("goes")
		stays := h.running()["stays"]
		var wg sync.WaitGroup
		wg.Go(func() { h.cli("session", "stop", "goes") })
		// The command needs time to start. The log shows its request, and its effect is
		// that the session leaves.
		poll.Until(t, "the session leaves", func() bool { return len(h.inits()) < 2 || h.leaving("goes") })
		time.Sleep(time.Duration(after) * time.Millisecond)
		h.kill()
		wg.Wait()
		h.start()
		keys := h.settled()
		if !slices.Contains(keys, "stays") || !slices.Equal(h.running()["stays"], stays) {
			t.Errorf("killed after %dms: the other session was %v, now %v of %v", after, stays, h.running()["stays"], keys)
		}
		h.open("goes")
		h.settled()
		h.kill()
	}
}

// leaving reports whether the session is no longer ready.
func (h *host) leaving(key string) bool {
	for _, s := range h.sessions() {
		if string(s.Key) == key {
			return s.State != holdfast.Ready
		}
	}
	return true
}

func TestAgentKilledInTheMiddleOfADrain(t *testing.T) {
	eachPool(t, warm, agentKilledInTheMiddleOfADrain)
}

func agentKilledInTheMiddleOfADrain(t *testing.T, pool string) {
	h := newPoolHost(t, pool)
	for _, after := range moments(0, 2, 5, 10, 20, 50) {
		h.start()
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() { h.open(fmt.Sprintf("k%d", i)) })
		}
		wg.Wait()
		h.signal(syscall.SIGTERM)
		time.Sleep(time.Duration(after) * time.Millisecond)
		// It may have ended by itself.
		_ = h.cmd.Process.Kill()
		h.wait()
		h.start()
		h.settled()
		// The engine continues, and the node accepts sessions.
		h.open("fresh")
		h.settled()
		h.signal(syscall.SIGTERM)
		if code := h.wait(); code != 0 {
			t.Fatalf("the drain after: exit code %d\n%s%s", code, &h.out, &h.errs)
		}
		if n := len(h.running()); n != 0 {
			poll.Until(t, "the engine has seen them dead", func() bool { return len(h.running()) == 0 })
		}
	}
}

func TestEngineRestartedUnderAnAgent(t *testing.T) {
	private := labtest.Private(t, lab.Options{})
	h := newHostOn(t, private.Host(), poolTemplate(pooled))
	h.pool = pooled
	h.start()
	keys := []string{"a", "b", "c"}
	for _, key := range keys {
		h.open(key)
	}
	before := h.running()
	if err := private.StopDaemon(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, key := range keys {
		wg.Go(func() { h.open(key) }) // the test fails if it is not served
	}
	time.Sleep(500 * time.Millisecond) // the gateway parks them
	if err := private.StartDaemon(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if got := h.settled(); !slices.Equal(got, keys) {
		t.Errorf("sessions %v", got)
	}
	for key, ids := range h.running() {
		if slices.Equal(ids, before[key]) {
			t.Errorf("%s has the container that its engine took along", key)
		}
	}
	h.poolFull()
	h.open("d")
	if !h.joined("d") {
		t.Error("d has joined no network: the pool does not work after a restart of the engine")
	}
	h.must("session", "stop", "d")
	poll.Until(t, "the dead containers are removed", func() bool { return len(h.containers()) == len(keys) })
}

// An engine is downgraded, and upgraded again, under an agent. The older engine refuses the version
// of the API that the agent has agreed on with the newer one.
func TestEngineUpgradedUnderAnAgent(t *testing.T) {
	if !labtest.Long() || labtest.Options(lab.Options{}).Dockerd == "" {
		t.Skip("long: two versions of Docker, the installed one and that of -dockerd")
	}
	older, newer := labtest.Private(t, lab.Options{Dockerd: "dockerd"}), labtest.Private(t, lab.Options{})
	if err := older.StopDaemon(); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "docker.sock")
	at := func(e *lab.Engine) {
		if err := errors.Join(os.Symlink(e.Socket(), socket+"~"), os.Rename(socket+"~", socket)); err != nil {
			t.Fatal(err)
		}
	}
	at(newer)
	h := newHostOn(t, "unix://"+socket, "")
	h.start()
	h.open("a")
	for _, next := range [][2]*lab.Engine{{newer, older}, {older, newer}} {
		if err := next[0].StopDaemon(); err != nil {
			t.Fatal(err)
		}
		at(next[1])
		if err := next[1].StartDaemon(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"a", "b"} {
			h.open(key)
		}
		if h.engine != nil { // the test's own client, of the other engine
			h.engine.Close()
			h.engine = nil
		}
		poll.Until(t, "the sessions run on this engine", func() bool { return len(h.running()) == 2 })
		h.must("session", "stop", "b")
	}
}

func TestTemplateChangedBetweenAgents(t *testing.T) {
	h := newHost(t, "")
	h.start()
	h.open("alice")
	before := h.running()["alice"]
	h.must("agent", "stop", "--keep")
	h.wait()
	h.configure(`
templates:
  - name: other
    image: ` + labtest.TestServer + `
    port: 8080
    env: {GENERATION: "two"}
`)
	h.start()
	h.open("alice")
	if got := h.running()["alice"]; !slices.Equal(got, before) {
		t.Errorf("the running session was %v, is %v", before, got)
	}
	if out := h.must("session", "show", "alice"); !strings.Contains(out, "web") {
		t.Errorf("it does not say what it runs by:\n%s", out)
	}
	h.must("session", "stop", "alice")
	h.open("alice")
	c, err := h.api().Inspect(t.Context(), h.running()["alice"][0])
	if err != nil || !slices.Contains(c.Env, "GENERATION=two") {
		t.Errorf("the next boot does not follow the new template: %v, %v", c.Env, err)
	}
}

// The reader of the agent's output and log dies before the agent.
func TestReaderOfTheOutputGoesAway(t *testing.T) {
	h := newHost(t, "")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	h.startTo(w)
	w.Close()
	h.open("alice")
	init := h.inits()["alice"]
	r.Close()
	h.signal(syscall.SIGTERM)
	if code := h.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if alive(init) {
		t.Error("the container lives after the drain")
	}
}
