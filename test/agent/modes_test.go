package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/session"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// The kinds of pools of a node.
const (
	bridge = "bridge" // no pool
	pooled = "pooled" // networks of Holdfast's
	warm   = "warm"   // warm containers, fewer than sessions, so that some sessions boot
)

// warmKept is the number of warm containers of a node with the pool warm.
const warmKept = 2

// eachPool runs a test on nodes with each kind of pool if -long or -on-containerd is set,
// else with one kind only.
func eachPool(t *testing.T, some string, f func(t *testing.T, pool string)) {
	t.Helper()
	for _, pool := range []string{bridge, pooled, warm} {
		if pool == pooled && labtest.OnContainerd() {
			continue // there all networks are Holdfast's
		}
		if labtest.Long() || labtest.OnContainerd() || pool == some {
			t.Run(pool, func(t *testing.T) { f(t, pool) })
		}
	}
}

// poolTemplate is a template of the test server with a pool.
func poolTemplate(pool string) string { return poolOf(pool, template) }

// poolOf returns a template with a pool.
func poolOf(pool, template string) string {
	line := "network: " + pool
	if pool == warm {
		line = fmt.Sprintf("warm: %d", warmKept)
	}
	return "templates:" + strings.TrimRight(template, "\n") + "\n    " + line + "\n"
}

// newPoolHost is newHost with a pool. start waits until the pool is full.
func newPoolHost(t *testing.T, pool string) *host {
	t.Helper()
	h := newHost(t, poolTemplate(pool))
	h.pool = pool
	return h
}

// newPoolFleet is newFleet of nodes with full pools.
func newPoolFleet(t *testing.T, n int, timing, pool string) []*host {
	t.Helper()
	with := func(h *host) { h.pool = pool }
	return newFleetOf(t, n, timing, func(int) string { return poolTemplate(pool) }, with, (*host).start)
}

// poolFull waits until the pool of the node is full.
func (h *host) poolFull() {
	h.t.Helper()
	if h.pool == warm {
		poll.Until(h.t, "the pool is full", func() bool {
			return h.metric(`holdfast_warm_ready{template="web"}`) == fmt.Sprint(warmKept)
		})
	}
	if h.direct != nil || h.pool != pooled && h.pool != warm {
		return
	}
	poll.Until(h.t, "the holders and networks are ready", func() bool {
		holders := h.metric("holdfast_network_holders")
		n, err := strconv.Atoi(holders)
		// Each test has at least two boots at once, and a pool begins with at least as many holders.
		return err == nil && n >= 2 && h.metric("holdfast_network_holders_free") == holders && h.metric("holdfast_networks_ready") == "4" // the default
	})
}

// keyOf returns the session of a container: by its label, or for a warm container by its
// identity. It returns "" for an unclaimed container.
func (h *host) keyOf(c engine.Container) string {
	h.t.Helper()
	if c.Labels[session.LabelWarm] == "" {
		return c.Labels[session.LabelSession]
	}
	c, err := h.api().Inspect(h.t.Context(), c.ID)
	if err != nil || !c.Running() {
		return "" // the container has just ended
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

// claimed returns the node's containers in any state, except unclaimed ones.
func (h *host) claimed() []engine.Container {
	h.t.Helper()
	return slices.DeleteFunc(h.containers(), func(c engine.Container) bool {
		return c.Running() && h.keyOf(c) == ""
	})
}

// waiting returns the pids of the unclaimed containers.
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
