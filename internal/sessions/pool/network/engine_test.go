package network

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/kill"
	"holdfast/test/lab/labtest"
)

// started is a pool that runs on the package's engine until the test ends.
func started(t *testing.T, size int) (*Pool, engine.Engine) {
	t.Helper()
	_, e := labtest.Either(t)
	opener, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	p := New(Config{Node: "n", Size: size}, Deps{
		Engine: e, Opener: opener, Metrics: NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		if err := p.End(context.Background()); err != nil {
			t.Error(err)
		}
		if left, err := e.List(context.Background(), map[string]string{Label: ""}); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		ready, _, _ := p.Counts()
		switch {
		case ready == size:
			return p, e
		case time.Now().After(end):
			t.Fatalf("%d networks are ready after a minute", ready)
		}
	}
}

// TestHolderMayDoNothing checks the process that holds a network: it only waits, runs
// as user `nobody` without capabilities, and exits at once on its stop signal.
func TestHolderMayDoNothing(t *testing.T) {
	p, e := started(t, 1)
	h, ok := p.Take("alice")
	if !ok {
		t.Fatal("none is ready")
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Name:\tpause", "Uid:\t65534\t", "Gid:\t65534\t", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("what holds a network has not %q:\n%s", want, status)
		}
	}
	c, err := e.Inspect(t.Context(), h.ID)
	if err != nil || len(c.Addresses) == 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	// Nothing listens in the network: it refuses a connect.
	if conn, err := net.DialTimeout("tcp", net.JoinHostPort(c.Addresses[0], "80"), 5*time.Second); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a connect ends with %v, %v", conn, err)
	}
	hosts, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/etc/hosts", h.Pid()))
	if err != nil || !strings.Contains(string(hosts), c.Addresses[0]+"\talice\n") || strings.Contains(string(hosts), h.ID[:hostnameLen]) {
		t.Errorf("/etc/hosts is %q, %v", hosts, err)
	}
	p.Drop(h.ID)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if list, err := e.List(t.Context(), map[string]string{Label: "n"}); err == nil && len(list) == 1 && list[0].ID != h.ID {
			break
		} else if time.Now().After(end) {
			t.Fatalf("after a minute there are %v, %v", list, err)
		}
	}
}

// TestMemoryOfAReadyNetwork measures the figures of docs/pools.md: the memory that
// each network costs the host, and the part of it that belongs to processes.
func TestMemoryOfAReadyNetwork(t *testing.T) {
	labtest.NeedLong(t, "a measurement: run it with -long")
	const n = 24
	t.Run("the first", func(t *testing.T) { started(t, 1) }) // the engine's part of the cost
	before, pids := available(t), shims(t)
	_, e := started(t, n)
	after := available(t)
	list, err := e.List(t.Context(), map[string]string{Label: "n"})
	if err != nil {
		t.Fatal(err)
	}
	var own, shim int64
	for _, c := range list {
		c, err := e.Inspect(t.Context(), c.ID)
		if err != nil {
			t.Fatal(err)
		}
		own += pss(t, c.Pid)
	}
	for pid := range shims(t) {
		if !pids[pid] {
			shim += pss(t, pid)
		}
	}
	t.Logf("for each of %d networks: the host has %d KiB less; what holds it has %d KiB, the engine's shim for that %d KiB",
		n, (before-after)/n, own/int64(len(list)), shim/n)
}

// available is the host's MemAvailable in KiB.
func available(t *testing.T) int64 { return kib(t, "/proc/meminfo", "MemAvailable:") }

// pss is a process's proportional set size in KiB: shared pages count in part.
func pss(t *testing.T, pid int) int64 {
	return kib(t, fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss:")
}

func kib(t *testing.T, file, key string) int64 {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 1 && fields[0] == key {
			v, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("%s has no %s", file, key)
	return 0
}

// shims are the engine's processes that run beside each container.
func shims(t *testing.T) map[int]bool {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && strings.Contains(exe, "containerd-shim") {
			out[pid] = true
		}
	}
	return out
}
