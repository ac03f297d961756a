package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/platform/engine"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// endingTemplates are sessions that end in different ways once they have a file /go.
const endingTemplates = `
  - name: exits
    image: ` + labtest.Busybox + `
    command: [sh, -c, "mkdir /www && httpd -p 8080 -h /www && while ! [ -e /go ]; do sleep 0.05; done; exit 7"]
    port: 8080
    ready: {timeout: 2m}
  - name: hungry
    image: ` + labtest.Busybox + `
    command: [sh, -c, "mkdir /www && httpd -p 8080 -h /www && while ! [ -e /go ]; do sleep 0.05; done; exec tail /dev/zero"]
    port: 8080
    memory: 32MiB
    ready: {timeout: 2m}
  - name: broken
    image: ` + labtest.Busybox + `
    command: [sh, -c, "seq 1 100; exit 3"]
    port: 8080
    ready: {timeout: 2m}
`

// shown is the output of `session show --json`.
type shown struct {
	api.Session
	Endings []holdfast.Ending `json:"endings"`
}

// howEnded waits until a session has ended, and returns its last ending.
func (h *host) howEnded(key string) holdfast.Ending {
	h.t.Helper()
	var s shown
	poll.Until(h.t, key+" has ended", func() bool {
		s = shown{} // a field that is absent must not stay
		r := h.cli("session", "show", key, "--json")
		return r.code == 0 && json.Unmarshal([]byte(r.out), &s) == nil && len(s.Endings) > 0
	})
	return s.Endings[0]
}

func TestWhySessionsEnd(t *testing.T) {
	needDocker(t)
	h := newHost(t, "templates:"+endingTemplates)
	h.start()
	h.must("session", "start", "engine")
	if err := h.api().Kill(t.Context(), h.running()["engine"][0]); err != nil {
		t.Fatal(err)
	}
	if e := h.howEnded("engine"); e.Reason != holdfast.EndEngine || e.By != holdfast.ByEngine || e.Signal != "SIGKILL" {
		t.Errorf("killed through the engine: %+v", e)
	}
	whySessionsEnd(t, h)
}

func TestWhySessionsEndOnContainerd(t *testing.T) {
	labtest.NeedLong(t, "TestWhySessionsEnd has all reasons; the conformance of engines has their exit codes")
	h, _ := newContainerdHost(t)
	h.configure("templates:" + endingTemplates)
	h.start()
	whySessionsEnd(t, h)
}

// Each way in which a session ends has its reason, also if the agent is killed before it
// could record it. h serves endingTemplates.
func whySessionsEnd(t *testing.T, h *host) {
	begin := func(key, template string) {
		t.Helper()
		h.must("session", "start", key, "--template", template)
	}
	begin("exits", "exits")
	goes := func(key string) {
		t.Helper()
		// A command that ends together with its container has the exit code of a kill.
		h.must("session", "exec", key, "--", "sh", "-c", "(sleep 0.3; touch /go) </dev/null >/dev/null 2>&1 &")
	}
	goes("exits")
	if e := h.howEnded("exits"); e.Reason != holdfast.EndExited || e.By != holdfast.ByContainer || e.ExitCode == nil || *e.ExitCode != 7 || e.Epoch == 0 || e.ReadyAt.IsZero() {
		t.Errorf("exit: %+v", e)
	}

	begin("hungry", "hungry")
	goes("hungry")
	e := h.howEnded("hungry")
	if e.Reason != holdfast.EndOOM || e.By != holdfast.ByKernel || e.OOMKills == 0 || e.Signal != "SIGKILL" {
		t.Errorf("out of memory: %+v", e)
	}
	if m := e.Memory; m == nil || len(m.Samples) == 0 || m.Limit != 32<<20 {
		t.Errorf("memory before the end: %+v", m)
	}

	begin("stopped", "exits")
	h.must("session", "stop", "stopped")
	if e := h.howEnded("stopped"); e.Reason != holdfast.EndStopped || e.By != holdfast.ByUser {
		t.Errorf("stop: %+v", e)
	}

	if r := h.cli("session", "start", "broken", "--template", "broken"); r.code == 0 {
		t.Errorf("a container that exits booted: %s", r.out)
	}
	e = h.howEnded("broken")
	lines := strings.Split(strings.TrimSpace(e.Log), "\n")
	if e.Reason != holdfast.EndBootFailed || e.Phase == "" || e.ExitCode == nil || *e.ExitCode != 3 || len(lines) != holdfast.MaxEndLines || lines[0] != "51" || lines[49] != "100" {
		t.Errorf("failed boot: %+v", e)
	}
	if out := h.show("broken"); !strings.Contains(out, "| 100") || !strings.Contains(out, "did not boot") {
		t.Errorf("it is shown as:\n%s", out)
	}

	begin("drained", "exits")
	h.must("drain")
	if e := h.howEnded("drained"); e.Reason != holdfast.EndDrained || e.By != holdfast.ByDrain {
		t.Errorf("drain: %+v", e)
	}
	h.must("node", "uncordon")

	begin("late", "exits")
	id := h.running()["late"][0]
	h.signal(syscall.SIGSTOP) // so that it cannot record the end
	if _, err := h.api().Exec(t.Context(), id, engine.Exec{Command: []string{"touch", "/go"}}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the container has ended", func() bool {
		c, err := h.api().Inspect(t.Context(), id)
		return err == nil && !c.Running()
	})
	before := h.lastEvent()
	h.signal(syscall.SIGKILL)
	h.wait()
	h.configure("sessions: {idle_stop: 1s}\ntemplates:" + endingTemplates)
	h.start()
	if e := h.howEnded("late"); e.Reason != holdfast.EndExited || e.ExitCode == nil || *e.ExitCode != 7 {
		t.Errorf("the agent was killed before it recorded the end: %+v", e)
	}
	begin("idle", "exits")
	if e := h.howEnded("idle"); e.Reason != holdfast.EndIdle || e.By != holdfast.ByIdleStop {
		t.Errorf("idle: %+v", e)
	}
	h.continued(before)
	if e := h.howEnded("exits"); e.Reason != holdfast.EndExited {
		t.Errorf("the next agent shows %+v", e)
	}
}

// lastEvent returns the number of the last event in the agent's file: the agent need not
// answer.
func (h *host) lastEvent() int64 {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.dir, "data", "session-events.jsonl"))
	if err != nil {
		h.t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var e holdfast.SessionEvent
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &e); err != nil {
		h.t.Fatal(err)
	}
	return e.ID
}

// continued checks that a subscriber that has seen all events of an agent, up to one,
// continues with the next agent as if there were one only.
func (h *host) continued(after int64) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.apiTCP+"/v1/events", nil)
	if err != nil {
		h.t.Fatal(err)
	}
	r.Header.Set(api.LastEventID, strconv.FormatInt(after, 10))
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	var of []holdfast.EventType
	in := bufio.NewScanner(res.Body)
	for in.Scan() {
		data, ok := strings.CutPrefix(in.Text(), "data: ")
		if !ok {
			continue
		}
		var e holdfast.SessionEvent
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			h.t.Fatal(err)
		}
		if after++; e.ID != after {
			h.t.Fatalf("event %d is %+v", after, e)
		}
		if e.Key == "idle" {
			of = append(of, e.Type)
		}
		if e.Key == "idle" && e.Ending != nil {
			if e.Ending.Reason != holdfast.EndIdle {
				h.t.Errorf("the last event is %+v", e)
			}
			break
		}
	}
	if want := []holdfast.EventType{holdfast.EventRequested, holdfast.EventBoot, holdfast.EventReady, holdfast.EventEnded}; !slices.Equal(of, want) {
		h.t.Errorf("the session's events are %v, %v", of, in.Err())
	}
}
