package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/session"
	"holdfast/test/lab/labtest"
)

// What a node keeps ready for its sessions.
const (
	bridge = "bridge" // nothing
	pooled = "pooled" // networks
	warm   = "warm"   // containers: fewer than sessions, some of which boot
)

// warmKept is how many containers a node of the pool warm keeps.
const warmKept = 2

// eachPool runs a test on nodes with each kind of pool, with -long and with
// -on-containerd, and else with one kind only.
func eachPool(t *testing.T, some string, f func(t *testing.T, pool string)) {
	t.Helper()
	for _, pool := range []string{bridge, pooled, warm} {
		if labtest.Long() || labtest.OnContainerd() || pool == some {
			t.Run(pool, func(t *testing.T) { f(t, pool) })
		}
	}
}

// poolTemplate is the test server with a pool.
func poolTemplate(pool string) string { return poolOf(pool, template) }

// poolOf is a template with a pool.
func poolOf(pool, template string) string {
	line := "network: " + pool
	if pool == warm {
		line = fmt.Sprintf("warm: %d", warmKept)
	}
	return "templates:" + strings.TrimRight(template, "\n") + "\n    " + line + "\n"
}

// newPoolHost is newHost with a pool, which start waits for.
func newPoolHost(t *testing.T, pool string) *host {
	t.Helper()
	h := newHost(t, poolTemplate(pool))
	h.pool = pool
	return h
}

// newPoolFleet is newFleet of nodes with a pool, which are full.
func newPoolFleet(t *testing.T, n int, timing, pool string) []*host {
	t.Helper()
	with := func(h *host) { h.pool = pool }
	return newFleetOf(t, n, timing, func(int) string { return poolTemplate(pool) }, with, (*host).start)
}

// poolFull waits until what the node keeps is ready.
func (h *host) poolFull() {
	h.t.Helper()
	metric, want := `holdfast_warm_ready{template="web"}`, fmt.Sprint(warmKept)
	switch h.pool {
	case pooled:
		metric, want = "holdfast_networks_ready", "4" // the default
	case warm:
	default:
		return
	}
	eventually(h.t, "the pool is full", func() bool { return h.metric(metric) == want })
}

// keyOf is whose container it is: by its label, and for one that was there before its
// session by what it holds itself. "" for an unclaimed one.
func (h *host) keyOf(c engine.Container) string {
	h.t.Helper()
	if c.Labels[session.LabelWarm] == "" {
		return c.Labels[session.LabelSession]
	}
	c, err := h.api().Inspect(h.t.Context(), c.ID)
	if err != nil || !c.Running() {
		return "" // it has ended just now
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/run/holdfast/session.json", c.Pid))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && alive(c.Pid) {
			h.t.Error(err)
		}
		return ""
	}
	var told struct{ Session string }
	if err := json.Unmarshal(text, &told); err != nil || told.Session == "" {
		h.t.Errorf("%s holds %q: %v", c.Name, text, err)
	}
	return told.Session
}

// claimed are the node's containers, in whatever state, but those that wait.
func (h *host) claimed() []engine.Container {
	h.t.Helper()
	return slices.DeleteFunc(h.containers(), func(c engine.Container) bool {
		return c.Running() && h.keyOf(c) == ""
	})
}

// waiting are the pids of unclaimed containers.
func (h *host) waiting() []int {
	h.t.Helper()
	var pids []int
	for _, c := range h.containers() {
		if c.Running() && h.keyOf(c) == "" {
			c, err := h.api().Inspect(h.t.Context(), c.ID)
			if err != nil {
				h.t.Fatal(err)
			}
			pids = append(pids, c.Pid)
		}
	}
	return pids
}
