package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"holdfast/internal/control/api"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// install replaces the program of the host's agent as a package manager does. The file of the
// running program stays unchanged.
func (h *host) install(text []byte) {
	h.t.Helper()
	h.program = filepath.Join(h.dir, "bin", "holdfast")
	if err := os.MkdirAll(filepath.Dir(h.program), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(h.program+".new", text, 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Rename(h.program+".new", h.program); err != nil {
		h.t.Fatal(err)
	}
}

// installReal installs the program under test, as a file of its own.
func (h *host) installReal() {
	h.t.Helper()
	text, err := os.ReadFile(holdfastBinary(h.t))
	if err != nil {
		h.t.Fatal(err)
	}
	h.install(text)
}

// newUpgradable starts an agent from a copy of the program, with sessions a, b and c.
func newUpgradable(t *testing.T, extra string) *host {
	t.Helper()
	h := newHost(t, extra)
	h.startUpgradable()
	return h
}

func (h *host) startUpgradable() {
	h.t.Helper()
	h.installReal()
	h.startLogged()
	for _, key := range []string{"a", "b", "c"} {
		h.open(key)
	}
}

// startLogged is start with the output in a file, which the next agent also uses.
func (h *host) startLogged() {
	h.t.Helper()
	f, err := os.OpenFile(h.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	h.startTo(f)
	h.t.Cleanup(func() {
		h.endAgents()
		if h.t.Failed() {
			text, _ := os.ReadFile(h.logFile())
			h.t.Logf("the log of %s's agents:\n%s", h.node, text)
		}
	})
}

func (h *host) logFile() string { return filepath.Join(h.dir, "agent.log") }

// agents returns the pids of the host's agents, usually one.
func (h *host) agents() []int {
	h.t.Helper()
	var pids []int
	for _, p := range processes(h.t) {
		if p.has("agent", "--config", h.configFile()) && !p.has("--upgrade") {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// endAgents kills the agents that this test has not started itself.
func (h *host) endAgents() {
	for _, pid := range h.agents() {
		// It may have ended.
		_ = syscall.Kill(pid, syscall.SIGKILL)
		poll.Until(h.t, "an agent is dead", func() bool { return !alive(pid) })
	}
}

// pid returns the process of the agent that answers. An agent that has just started may
// answer after the time limit of `holdfast version`.
func (h *host) pid() int {
	h.t.Helper()
	var v struct{ Agent api.Version }
	poll.Until(h.t, "an agent reports its process", func() bool {
		if err := json.Unmarshal([]byte(h.must("version", "--json")), &v); err != nil {
			h.t.Fatalf("%+v, %v", v, err)
		}
		return v.Agent.PID != 0
	})
	return v.Agent.PID
}

// upgradeLimit is longer than all waits of an upgrade, as that of the command itself.
const upgradeLimit = 5 * time.Minute

// upgrade runs `holdfast agent --upgrade` with a short trial.
func (h *host) upgrade(more ...string) (result, api.Upgrade) {
	h.t.Helper()
	r := h.cliFor(upgradeLimit, append([]string{"agent", "--upgrade", "--trial", "300ms", "--json"}, more...)...)
	var u api.Upgrade
	if r.out != "" {
		if err := json.Unmarshal([]byte(r.out), &u); err != nil {
			h.t.Fatalf("%v: %s", err, r.out)
		}
	}
	return r, u
}

// clients starts open-loop loads on all listeners of the host's agent.
func (h *host) clients() (check func()) {
	loads := []*load{
		startLoad("gateway", 5*time.Millisecond, func(ctx context.Context, n int) error {
			return fetch(ctx, "tcp", h.gateway, fmt.Sprintf("/s/%c/", 'a'+n%3), http.StatusOK)
		}),
		startLoad("api", 50*time.Millisecond, func(ctx context.Context, _ int) error {
			return fetch(ctx, "tcp", h.apiTCP, "/healthz", http.StatusOK)
		}),
		startLoad("unix socket", 50*time.Millisecond, func(ctx context.Context, _ int) error {
			return fetch(ctx, "unix", h.socket, "/v1/version", http.StatusOK)
		}),
	}
	pool := &http.Transport{MaxIdleConnsPerHost: 10}
	kept := &http.Client{Timeout: time.Minute, Transport: pool}
	loads = append(loads, startLoad("kept-alive connections", 20*time.Millisecond, func(ctx context.Context, _ int) error {
		return ask(ctx, kept, "http://"+h.gateway+"/s/a/", http.StatusOK)
	}))
	return func() {
		h.t.Helper()
		for _, l := range loads {
			l.check(h.t)
		}
		pool.CloseIdleConnections()
	}
}

func TestUpgrades(t *testing.T) {
	h := newUpgradable(t, "")
	before, starts := h.running(), startTimes(t, h, h.running())
	check := h.clients()
	pid := h.pid()
	for range labtest.Count(1, 3) {
		h.installReal()
		r, u := h.upgrade()
		if r.code != 0 || u.State != api.UpgradeDone || u.Sessions != 3 || u.From.PID != pid || u.To.PID == pid {
			t.Fatalf("%+v\n%+v", r, u)
		}
		t.Logf("connects waited for %v at most; %v", u.Held, u.Steps)
		if alive(pid) {
			poll.Until(t, "the old agent is gone", func() bool { return !alive(pid) })
		}
		if now := h.pid(); now != u.To.PID {
			t.Fatalf("agent %d answers, %d took over", now, u.To.PID)
		}
		if got := h.agents(); len(got) != 1 {
			t.Errorf("agents %v", got)
		}
		pid = u.To.PID
	}
	check()
	if diff := cmp.Diff(before, h.running()); diff != "" {
		t.Errorf("containers:\n%s", diff)
	}
	if diff := cmp.Diff(starts, startTimes(t, h, before)); diff != "" {
		t.Errorf("containers were restarted:\n%s", diff)
	}
	if got := h.metric(`holdfast_agent_upgrades_total{outcome="done"}`); got != "1" {
		t.Errorf("the agent after the upgrade counts %s", got)
	}
	if alive(h.cmd.Process.Pid) || h.wait() != 0 {
		t.Errorf("the first agent ended with %d", h.wait())
	}
	// The last agent works like any other.
	h.must("agent", "stop")
	if n := len(h.running()); n != 0 {
		poll.Until(t, "the engine reports the containers dead", func() bool { return len(h.running()) == 0 })
	}
}

// Requests in progress are finished during an upgrade, and WebSockets stay open.
func TestUpgradeUnderWay(t *testing.T) {
	labtest.NeedLong(t, "TestUpgrades completes upgrades, TestUpgradeThatFails cancels some")
	h := newHost(t, "")
	h.stopTimeout = "1m" // on a loaded machine the download takes longer than the default
	h.configure("")
	h.startUpgradable()
	ws, _, err := websocket.Dial(t.Context(), "ws://"+h.gateway+"/s/a/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	// The download begins before the upgrade and ends after the next agent serves.
	download, err := http.Get("http://" + h.gateway + "/s/a/stream?n=20&every=100ms")
	if err != nil {
		t.Fatal(err)
	}
	defer download.Body.Close()
	whole := make(chan error, 1)
	go func() {
		b, err := io.ReadAll(download.Body)
		if lines := strings.Count(string(b), "\n"); err == nil && lines != 20 {
			err = fmt.Errorf("%d lines", lines)
		}
		whole <- err
	}()
	// A client of a session that boots.
	parked := make(chan error, 1)
	go func() { parked <- fetch(t.Context(), "tcp", h.gateway, "/s/new/", http.StatusOK) }()

	if r, u := h.upgrade(); r.code != 0 {
		t.Fatalf("%+v\n%+v", r, u)
	}
	if err := <-parked; err != nil {
		t.Errorf("a request that was parked: %v", err)
	}
	if err := <-whole; err != nil {
		t.Errorf("a download: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := ws.Write(ctx, websocket.MessageText, []byte("still here")); err != nil {
		t.Error(err)
	}
	if _, b, err := ws.Read(ctx); err != nil || string(b) != "still here" {
		t.Errorf("the WebSocket: %q, %v", b, err)
	}
}

// With any fault of the next agent, one agent serves.
func TestUpgradeThatFails(t *testing.T) {
	needDocker(t)
	h := newUpgradable(t, "")
	before, starts := h.running(), startTimes(t, h, h.running())
	pid := h.pid()
	good, err := os.ReadFile(h.configFile())
	if err != nil {
		t.Fatal(err)
	}
	check := h.clients()
	for _, c := range []struct {
		name    string
		long    bool
		prepare func()
		want    string
		state   api.UpgradeState // "": the next agent got no turn
	}{
		{"exits at once", false, func() { h.install([]byte("#!/bin/sh\nexit 7\n")) }, "exit status 7", ""},
		{"hangs at once", true, func() { h.install([]byte("#!/bin/sh\nexec sleep 1000\n")) }, "did not send its hello within 10s", ""},
		{"is no program", true, func() { h.install([]byte("what is this")) }, "exec format error", ""},
		{"is not there", true, func() { os.Remove(h.program) }, "no such file", ""},
		{"bad configuration", true, func() {
			h.installReal()
			h.configure("sessions: {boots: many}")
		}, "line ", ""},
		{"another data directory", false, func() {
			h.installReal()
			text := strings.Replace(string(good), "/data\n", "/data2\n", 1)
			if err := os.WriteFile(h.configFile(), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "data_dir is", ""},
		{"ends in its turn", false, func() { h.installReal(); h.configureEngine("unix:///nowhere/docker.sock") }, "/nowhere/docker.sock", api.UpgradeFailed},
		{"crashes in its turn", true, func() { h.installNext("crash") }, "the next agent has ended: exit status 4", api.UpgradeFailed},
		{"is killed in its turn", true, func() { h.installNext("die") }, "the next agent has ended: signal: killed", api.UpgradeFailed},
		{"crashes in its trial", false, func() { h.installNext("crash-up") }, "in its trial of 30s: the next agent has ended: exit status 4", api.UpgradeFailed},
	} {
		if c.long && !labtest.Long() {
			continue
		}
		c.prepare()
		r, u := h.upgrade("--trial", "30s") // on busy CPUs the next agent takes a while to crash
		lines := strings.Split(strings.TrimSpace(r.err), "\n")
		if r.code != 1 || u.State != c.state || len(lines) != 2 || !strings.HasPrefix(lines[0], "error: ") || !strings.HasPrefix(lines[1], "hint: ") ||
			!strings.Contains(lines[0], c.want) {
			t.Errorf("%s: exit code %d, state %q, want an error with %q and a hint:\n%s", c.name, r.code, u.State, c.want, r.err)
		}
		if now := h.pid(); now != pid {
			t.Errorf("%s: agent %d answers, %d was there before", c.name, now, pid)
		}
		if got := h.agents(); len(got) != 1 {
			t.Errorf("%s: agents %v", c.name, got)
		}
		if err := os.WriteFile(h.configFile(), good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check()
	h.sameContainers(before, starts)
	// A correct upgrade works after all these failures.
	h.installReal()
	if r, u := h.upgrade(); r.code != 0 || u.State != api.UpgradeDone {
		t.Errorf("%+v\n%+v", r, u)
	}
	h.sameContainers(before, starts)
}

// sameContainers checks that the same containers run, without a restart.
func (h *host) sameContainers(before map[string][]string, starts map[string]string) {
	h.t.Helper()
	if diff := cmp.Diff(before, h.running()); diff != "" {
		h.t.Errorf("containers before and after:\n%s", diff)
	}
	if diff := cmp.Diff(starts, startTimes(h.t, h, before)); diff != "" {
		h.t.Errorf("containers were restarted:\n%s", diff)
	}
}

func TestUpgradeWithoutAnAgent(t *testing.T) {
	h := newHost(t, "")
	wantError(t, h.cli("agent", "--upgrade"), 3, h.socket, "holdfast agent")
	wantError(t, h.cli("agent", "--upgrade", "--gateway", "127.0.0.1:1"), 2, "--gateway does not go with --upgrade", "")
	wantError(t, h.cli("agent", "--upgrade", "--trial", "-1s"), 2, "--trial is -1s", "")
	wantError(t, h.cli("agent", "--trial", "1s"), 2, "--trial goes with --upgrade", "")
}

// A second upgrade is refused while another one runs, before the turn and in the trial.
func TestTwoUpgradesAtOnce(t *testing.T) {
	labtest.NeedLong(t, "TestUpgrades has one at a time")
	h := newUpgradable(t, "")
	h.install([]byte("#!/bin/sh\nsleep 2\nexec " + holdfastBinary(t) + ` "$@"` + "\n"))
	first := make(chan result, 1)
	go func() { first <- h.cli("agent", "--upgrade", "--trial", "3s") }()
	poll.Until(t, "the first upgrade has started", func() bool { return h.lastUpgrade().State == api.UpgradeUnderWay })
	wantError(t, h.cli("agent", "--upgrade"), 8, "another upgrade of this agent is under way", "wait until it is over")
	poll.Until(t, "the first upgrade is on trial", func() bool { return h.lastUpgrade().State == api.UpgradeOnTrial })
	wantError(t, h.cli("agent", "--upgrade"), 8, "state is on_trial", "wait until it is over")
	if r := <-first; r.code != 0 || !strings.Contains(r.out, "3 sessions and 0 connections taken over") {
		t.Errorf("%+v", r)
	}
}

// lastUpgrade returns the API's report. It is empty while no agent answers.
func (h *host) lastUpgrade() (u api.Upgrade) {
	res, err := http.Get("http://" + h.apiTCP + "/v1/agent/upgrade")
	if err != nil {
		return u
	}
	defer res.Body.Close()
	_ = json.NewDecoder(res.Body).Decode(&u) // the caller retries
	return u
}

// A kill of the upgrade's command before the turn cancels the upgrade. Later the upgrade
// continues without it.
func TestUpgradeCommandKilled(t *testing.T) {
	labtest.NeedLong(t, "TestUpgradeThatFails cancels an upgrade, TestUpgrades completes one")
	h := newUpgradable(t, "")
	before, starts := h.running(), startTimes(t, h, h.running())
	check := h.clients()
	wait := func(t *testing.T, done func() bool) { t.Helper(); poll.Until(t, "the upgrade is over", done) }

	t.Run("before its turn", func(t *testing.T) {
		pid, failed := h.pid(), h.metric(`holdfast_agent_upgrades_total{outcome="failed"}`)
		h.install([]byte("#!/bin/sh\nexec sleep 1000\n"))
		kill := h.beginUpgrade("10s")
		poll.Until(t, "the next agent is started", func() bool { return h.lastUpgrade().State == api.UpgradeUnderWay })
		kill()
		wait(t, func() bool { return h.metric(`holdfast_agent_upgrades_total{outcome="failed"}`) != failed })
		if h.pid() != pid || h.lastUpgrade().State != api.UpgradeFailed {
			t.Errorf("agent %d was %d, %+v", h.pid(), pid, h.lastUpgrade())
		}
	})
	for _, state := range []api.UpgradeState{"handing over", api.UpgradeOnTrial} {
		t.Run(string(state), func(t *testing.T) {
			pid := h.pid()
			h.installReal()
			kill := h.beginUpgrade("1s")
			// The old agent reports nothing after it has handed over its turn.
			poll.Until(t, "it is "+string(state), func() bool {
				u := h.lastUpgrade()
				return u.To.PID != 0 && u.From.PID == pid || u.State == state
			})
			kill()
			wait(t, func() bool { u := h.lastUpgrade(); return u.From.PID == pid && u.State == api.UpgradeDone })
			if h.pid() == pid || len(h.agents()) != 1 {
				t.Errorf("agent %d was %d, of %v", h.pid(), pid, h.agents())
			}
		})
	}
	check()
	h.sameContainers(before, starts)
}

// beginUpgrade starts the command. The returned function kills it.
func (h *host) beginUpgrade(trial string) (kill func()) {
	h.t.Helper()
	cmd := exec.Command(holdfastBinary(h.t), "agent", "--upgrade", "--trial", trial)
	cmd.Env = append(os.Environ(), "HOLDFAST_SOCKET="+h.socket)
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	return func() {
		h.t.Helper()
		if err := cmd.Process.Kill(); err != nil {
			h.t.Error(err)
		}
		_ = cmd.Wait() // it was killed
	}
}

// The old agent forwards a signal to end during a trial to the new one.
func TestAgentToldToEndInATrial(t *testing.T) {
	labtest.NeedLong(t, "TestNextAgentToldToEndInATrial ends the other agent of a trial")
	for _, c := range []struct {
		sig  syscall.Signal
		left int // containers
	}{{syscall.SIGUSR2, 3}, {syscall.SIGTERM, 0}} {
		t.Run(c.sig.String(), func(t *testing.T) {
			h := newUpgradable(t, "")
			kill := h.beginUpgrade("1m")
			poll.Until(t, "the new agent is on trial", func() bool { return h.lastUpgrade().State == api.UpgradeOnTrial })
			kill()
			h.signal(c.sig)
			if code := h.wait(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			poll.Until(t, "only the expected containers are left", func() bool { return len(h.agents()) == 0 && len(h.running()) == c.left })
		})
	}
}

// If a signal ends the next agent in its trial, the old agent does not count that as a
// failure.
func TestNextAgentToldToEndInATrial(t *testing.T) {
	h := newUpgradable(t, "")
	kill := h.beginUpgrade("1m")
	poll.Until(t, "the new agent is on trial", func() bool { return h.lastUpgrade().State == api.UpgradeOnTrial })
	kill()
	h.must("agent", "stop")
	if code := h.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	poll.Until(t, "nothing is left", func() bool { return len(h.agents()) == 0 && len(h.running()) == 0 })
}

// After a kill of the old agent in a trial, the new agent continues.
func TestOldAgentKilledInATrial(t *testing.T) {
	h := newUpgradable(t, "")
	before, starts := h.running(), startTimes(t, h, h.running())
	check := h.clients()
	kill := h.beginUpgrade("1m")
	poll.Until(t, "the new agent is on trial", func() bool { return h.lastUpgrade().State == api.UpgradeOnTrial })
	h.kill()
	poll.Until(t, "the upgrade is over", func() bool { return h.lastUpgrade().State == api.UpgradeDone })
	kill()
	check()
	h.sameContainers(before, starts)
}

// Lease, deadman and all sessions stay during an upgrade, also if the next agent takes its
// turn and then does nothing.
func TestUpgradeInAFleet(t *testing.T) {
	labtest.NeedLong(t, "test/fleet TestEverythingHappens upgrades agents of a fleet")
	hosts := newFleetOf(t, 2, patient, func(int) string { return "" }, (*host).installReal, (*host).startLogged)
	hosts[0].ask("alice")
	has, before := owner(t, hosts, "alice")
	other := besides(hosts, has)[0]
	deadman := has.deadman()
	containers, starts := has.running(), startTimes(t, has, has.running())
	if labtest.Long() { // until the limit of a hang
		has.installNext("hang")
		if r, u := has.upgrade(); r.code != 1 || u.State != api.UpgradeFailed || !strings.Contains(r.err, `did not report "held" within`) {
			t.Errorf("%+v\n%+v", r, u)
		}
	}
	has.installReal()
	loads := []*load{
		startLoad("at the node", 5*time.Millisecond, func(ctx context.Context, _ int) error {
			return fetch(ctx, "tcp", has.gateway, "/s/alice/", http.StatusOK)
		}),
		// The gateway parks these requests; the maximum is 64.
		startLoad("through the other node", 100*time.Millisecond, func(ctx context.Context, _ int) error {
			return fetch(ctx, "tcp", other.gateway, "/s/alice/", http.StatusOK)
		}),
	}
	if r, u := has.upgrade(); r.code != 0 {
		t.Errorf("%+v\n%+v", r, u)
	}
	for _, l := range loads {
		l.check(t)
	}
	if again := has.deadman(); again != deadman {
		t.Errorf("deadman %d became %d", deadman, again)
	}
	has.sameContainers(containers, starts)
	if _, after := owner(t, hosts, "alice"); after.Epoch != before.Epoch {
		t.Errorf("epoch %d became %d", before.Epoch, after.Epoch)
	}
}
