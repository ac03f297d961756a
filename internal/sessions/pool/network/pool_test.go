package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/platform/linux/vethnet"
	"holdfast/internal/sessions/kill"
	"holdfast/internal/sessions/pool"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }

// rig is a pool on the package's engine.
type rig struct {
	*Pool
	engine engine.Engine
	net    *vethnet.Net
	stop   func()
}

// start starts a pool in dir, which ends with the test.
func start(t *testing.T, dir string, c Config) *rig {
	t.Helper()
	e, err := docker.Open(t.Context(), docker.Config{Host: labtest.Engine(t).Host()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	n, err := vethnet.New(vethnet.Config{Bridge: "switchedtest", Subnet: netip.MustParsePrefix("10.99.0.0/24"), Dir: filepath.Join(dir, "bridge")})
	if err != nil {
		t.Fatal(err)
	}
	opener, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	c.Node, c.Dir = "n", dir
	r := &rig{engine: e, net: n, Pool: New(c, Deps{
		Engine: e, Opener: opener, Net: n, Metrics: NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = r.Run(ctx) })
	r.stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	t.Cleanup(func() {
		r.stop()
		if err := r.End(context.Background()); err != nil {
			t.Error(err)
		}
	})
	poll.Until(t, "the holders and networks are ready", func() bool {
		n := r.Counts()
		return n.Free == min(c.Holders, FirstHolders()) && n.Ready >= n.Target
	})
	return r
}

// boot creates a container in a network of the pool and starts it.
func (r *rig) boot(t *testing.T, name string) (pool.Joined, engine.Container) {
	t.Helper()
	j, ok := r.Take(t.Context(), name)
	if !ok {
		t.Fatalf("no network for %s: %+v", name, r.Counts())
	}
	id, err := r.engine.Create(t.Context(), engine.Spec{
		Name: name, Image: labtest.Busybox, Network: "container:" + j.Holder.ID, Mounts: j.Mounts,
		Labels: map[string]string{engine.LabelAddress: j.Addr.String()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.engine.Remove(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
	if err := r.engine.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	c, err := r.engine.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return j, c
}

func (r *rig) shell(t *testing.T, id, script string) string {
	t.Helper()
	var out bytes.Buffer
	if code, err := r.engine.Exec(t.Context(), id, engine.Exec{Command: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out}); err != nil || code != 0 {
		t.Fatalf("%s: code %d, %v: %s", script, code, err, &out)
	}
	return strings.TrimSpace(out.String())
}

// One holder gives several containers networks of their own, with files of their own, and
// is free after each.
func TestOneHolderManyNetworks(t *testing.T) {
	r := start(t, t.TempDir(), Config{Holders: 1, Ready: 1})
	seen := map[string]bool{}
	for _, name := range []string{"alice", "bob", "carol"} {
		j, c := r.boot(t, name)
		if _, ok := r.Take(t.Context(), "dave"); ok {
			t.Error("a holder is used twice in parallel")
		}
		if err := r.Started(j.Addr, c.Pid); err != nil {
			t.Fatal(err)
		}
		if n := r.Counts(); n.Free != 1 || n.Holders != 1 {
			t.Errorf("after a start: %+v", n)
		}
		if len(c.Addresses) != 1 || c.Addresses[0] != j.Addr.String() || seen[c.Addresses[0]] {
			t.Errorf("%s has %v; its network is %v", name, c.Addresses, j.Addr)
		}
		seen[c.Addresses[0]] = true
		for script, want := range map[string]string{
			"ip -4 -o addr show eth0 | awk '{print $4}'":     j.Addr.String() + "/24",
			"ip -4 -o addr show lo | awk '{print $4}'":       "127.0.0.1/8",
			"cat /etc/hostname":                              name,
			"grep -w " + name + " /etc/hosts | cut -f1":      j.Addr.String(),
			"grep -c localhost /etc/hosts":                   "2",
			"ping -c 1 -W 5 10.99.0.1 >/dev/null && echo ok": "ok",
			"cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/ipv6/conf/eth0/disable_ipv6": "0\n1",
		} {
			if got := r.shell(t, c.ID, script); got != want {
				t.Errorf("%s: %s is %q, not %q", name, script, got, want)
			}
		}
		r.shell(t, c.ID, "echo poison > /etc/resolv.conf")
		t.Cleanup(func() { r.Drop(j.Addr) })
	}
}

// A holder has one capability, and its other privileges are none.
func TestHolderMayOnlyChangeItsNetwork(t *testing.T) {
	r := start(t, t.TempDir(), Config{Holders: 1})
	h := r.freeHolder()
	defer r.release(h)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.target.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Name:\tholder", "CapEff:\t0000000000200000", "CapBnd:\t0000000000200000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("a holder has not %q:\n%s", want, status)
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", h.target.Pid()))
	if err != nil || !strings.HasPrefix(strings.Fields(string(mounts))[3], "ro") {
		t.Errorf("its root is %s, %v", mounts, err)
	}
	devices, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", h.target.Pid()))
	if err != nil || strings.Contains(string(devices), "eth") {
		t.Errorf("its devices: %s, %v", devices, err)
	}
	if text, err := profile(); err != nil || bytes.Contains(text, []byte(`"ptrace"`)) || bytes.Contains(text, []byte(`"mount"`)) {
		t.Errorf("the profile is %s, %v", text, err)
	}
}

// A network ends with its container and leaves no device. One of a failed start is not
// used again. Its holder is.
func TestNetworksEnd(t *testing.T) {
	r := start(t, t.TempDir(), Config{Holders: 1})
	j, c := r.boot(t, "ends")
	if err := r.Started(j.Addr, os.Getpid()); !errors.Is(err, ErrElsewhere) {
		t.Errorf("a process in another network: %v", err)
	}
	if err := r.Started(j.Addr, c.Pid); err != nil {
		t.Fatal(err)
	}
	if err := r.engine.Kill(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	r.Drop(j.Addr)
	failed, ok := r.Take(t.Context(), "failed")
	if !ok {
		t.Fatal("no network")
	}
	r.Drop(failed.Addr)
	poll.Until(t, "no device is left", func() bool { n, err := r.net.Addresses(); return err == nil && len(n) == 0 })
	if n := r.Counts(); n != (Counts{Holders: 1, Free: 1}) {
		t.Errorf("afterwards: %+v", n)
	}
	if next, ok := r.Take(t.Context(), "next"); !ok || next.Addr == failed.Addr && next.Addr == j.Addr {
		t.Errorf("the next network is %v, %v", next.Addr, ok)
	}
}

// A holder that ends is replaced; a boot that has it finds out.
func TestHoldersAreReplaced(t *testing.T) {
	r := start(t, t.TempDir(), Config{Holders: 2})
	j, ok := r.Take(t.Context(), "lost")
	if !ok {
		t.Fatal("no network")
	}
	if err := j.Holder.Init().Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the holder is dead", j.Holder.Init().Exited)
	r.Drop(j.Addr)
	poll.Until(t, "there are two again", func() bool { return r.Counts().Free == 2 })
	list := func() (ids []string) {
		all, err := r.engine.List(t.Context(), map[string]string{Label: "n"})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			ids = append(ids, c.ID)
		}
		return ids
	}
	poll.Until(t, "the old one is removed", func() bool { return len(list()) == 2 })
}

// Holders are in the network of the first one, so that the engine has one network to release when all exit at once, as
// with a killed agent. Then it still answers.
func TestHoldersShareANetwork(t *testing.T) {
	for range 3 {
		r := start(t, t.TempDir(), Config{Holders: 2})
		homes := map[string]bool{}
		r.mu.Lock()
		for _, h := range r.free {
			home, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", h.home.Fd()))
			if err != nil {
				t.Error(err)
			}
			homes[home] = true
		}
		holders := len(r.free)
		for _, h := range r.free {
			h.conn.Close()
		}
		r.mu.Unlock()
		if holders != 2 || len(homes) != 1 {
			t.Errorf("%d holders have the networks %v", holders, homes)
		}
		r.stop()
		if err := r.End(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A pool makes another holder if all are kept by boots that do not end.
func TestHoldersGrow(t *testing.T) {
	most := FirstHolders() + 1
	r := start(t, t.TempDir(), Config{Holders: most})
	var taken []pool.Joined
	for i := range most {
		// A boot does not wait for a new holder on a host that is too busy to start one soon.
		poll.Until(t, fmt.Sprintf("there is a network for boot %d", i), func() bool {
			j, ok := r.Take(t.Context(), fmt.Sprintf("s%d", i))
			if ok {
				taken = append(taken, j)
			}
			return ok
		})
	}
	if c := r.Counts(); c.Holders != most || c.Free != 0 {
		t.Errorf("%d boots have %+v", most, c)
	}
	if _, ok := r.Take(t.Context(), "more"); ok {
		t.Error("one boot more has a network")
	}
	for _, j := range taken {
		r.Drop(j.Addr)
	}
	if c := r.Counts(); c.Holders != most || c.Free != most || c.Used != 0 {
		t.Errorf("after the boots: %+v", c)
	}
}

// An agent that is gone leaves a running container with its network, and nothing else:
// holders exit, and unused networks end. The next agent takes the container over.
func TestNextAgent(t *testing.T) {
	dir := t.TempDir()
	first := start(t, dir, Config{Holders: 2, Ready: 2})
	j, c := first.boot(t, "stays")
	if err := first.Started(j.Addr, c.Pid); err != nil {
		t.Fatal(err)
	}
	underWay, ok := first.Take(t.Context(), "under-way")
	if !ok {
		t.Fatal("no network")
	}
	// As with a kill of the agent: its descriptors close, and nothing is removed.
	first.mu.Lock()
	for _, h := range first.free {
		h.conn.Close()
	}
	first.used[underWay.Addr].hold.conn.Close()
	first.used[underWay.Addr].ns.Close()
	first.endReadyLocked()
	first.mu.Unlock()
	first.stop()
	poll.Until(t, "only the container's network is left", func() bool {
		n, err := first.net.Addresses()
		return err == nil && len(n) == 1 && n[0] == j.Addr
	})
	second := start(t, dir, Config{Holders: 1, Ready: 1})
	second.Adopt(j.Addr)
	if got := second.shell(t, c.ID, "ping -c 1 -W 5 10.99.0.1 >/dev/null && echo ok"); got != "ok" {
		t.Error("the container has lost its network")
	}
	poll.Until(t, "the first agent's holders are removed", func() bool {
		list, err := second.engine.List(t.Context(), map[string]string{Label: "n"})
		return err == nil && len(list) == 1
	})
	if err := second.engine.Kill(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	second.Drop(j.Addr)
	second.stop()
	poll.Until(t, "no device is left", func() bool { n, err := second.net.Addresses(); return err == nil && len(n) == 0 })
	if err := second.net.Remove(nil); err != nil {
		t.Error(err)
	}
}

// Without holders the pool gives no network, so that the engine makes it.
func TestNoHolders(t *testing.T) {
	r := start(t, t.TempDir(), Config{Ready: 4})
	if j, ok := r.Take(t.Context(), "x"); ok {
		t.Errorf("there is %+v", j)
	}
	r.Drop(netip.MustParseAddr("10.99.0.9"))
	if err := r.Started(netip.MustParseAddr("10.99.0.9"), 1); err == nil {
		t.Error("an unknown network is started")
	}
}

// The holders of another store, which is another agent's, are left alone. A pool without
// holders of its own removes those of its node.
func TestHoldersOfAnotherStoreStay(t *testing.T) {
	r := start(t, t.TempDir(), Config{})
	make := func(store string) string {
		id, err := r.engine.Create(t.Context(), engine.Spec{Image: labtest.Busybox, Network: "none", Labels: map[string]string{Label: "n", StoreLabel: store}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.engine.Remove(context.Background(), id) })
		return id
	}
	r.stop()
	r.cfg.Store = "mine"
	mine, theirs := make("mine"), make("theirs")
	r.sweep(t.Context())
	if err := r.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.engine.Inspect(t.Context(), mine); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("its own holder of an earlier agent: %v", err)
	}
	if _, err := r.engine.Inspect(t.Context(), theirs); err != nil {
		t.Errorf("the holder of another store: %v", err)
	}
}

// A pool that can make no network says why, until it can.
func TestProblem(t *testing.T) {
	r := start(t, t.TempDir(), Config{Holders: 1})
	if err := r.Problem(); err != nil || !r.Settled() {
		t.Errorf("a pool that works: %v", err)
	}
	working := r.deps.Net
	broken, err := vethnet.New(vethnet.Config{Bridge: "lo", Subnet: netip.MustParsePrefix("10.97.0.0/24"), Dir: filepath.Join(t.TempDir(), "bridge")})
	if err != nil {
		t.Fatal(err)
	}
	r.deps.Net = broken
	if j, ok := r.Take(t.Context(), "x"); ok || r.Problem() == nil {
		t.Errorf("%+v, %v", j, r.Problem())
	}
	r.deps.Net = working
	j, ok := r.Take(t.Context(), "x")
	if err := r.Problem(); !ok || err != nil {
		t.Errorf("a pool that works again: %v, %v", ok, err)
	}
	r.Drop(j.Addr)
}
