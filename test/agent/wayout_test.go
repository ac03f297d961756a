package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/engine/containerd"
	"holdfast/internal/platform/linux/netns"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// shellTemplate is a server whose container has a shell.
const shellTemplate = `
  - name: web
    image: ` + labtest.Busybox + `
    command: [sh, -c, "mkdir /www && echo hello > /www/index.html && exec httpd -f -p 8080 -h /www"]
    port: 8080
    ready: {timeout: 2m}
`

// outside is an address beyond this host, of a machine whose only route is to the host
// itself. It answers GET / with the address of its client.
func outside(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("sleep", "inf")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "outside0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsPid(cmd.Process.Pid)}); err != nil {
		t.Fatal(err)
	}
	up := func(name, address string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	}
	if err := up("outside0", "192.0.2.1/24"); err != nil {
		t.Fatal(err)
	}
	if err := netns.Do(netns.OfProcess(cmd.Process.Pid), func() error {
		if err := up("eth0", "192.0.2.2/24"); err != nil {
			return err
		}
		l, err := net.Listen("tcp4", "192.0.2.2:7000")
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
				fmt.Fprint(c, host)
				c.Close()
			}
		}()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return "192.0.2.2"
}

// besideDocker starts a Docker engine in the same network namespace. Docker enables
// forwarding and drops forwarded packets except its own.
func besideDocker(t *testing.T) {
	t.Helper()
	labtest.Engine(t)
	before := output(t, "iptables", "-S", "FORWARD")
	if !strings.Contains(before, "-j DOCKER") {
		t.Fatalf("Docker has no rules:\n%s", before)
	}
	if !strings.HasPrefix(before, "-P FORWARD DROP") { // forwarding was enabled before Docker started
		output(t, "iptables", "-P", "FORWARD", "DROP")
		t.Cleanup(func() { output(t, "iptables", "-P", "FORWARD", "ACCEPT") })
	}
}

func output(t *testing.T, args ...string) string {
	t.Helper()
	text, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, text)
	}
	return string(text)
}

// firewall returns the rules of nftables and iptables, and the state of forwarding.
func firewall(t *testing.T) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(output(t, "iptables-save")) {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ":") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		out = append(out, "table "+table.Name)
	}
	// Devices of tests of other packages come and go.
	const conf = "/proc/sys/net/ipv4/conf/"
	ours, err := filepath.Glob(conf + "holdfast*")
	if err != nil {
		t.Fatal(err)
	}
	for _, device := range append(ours, conf+"all", conf+"default") {
		text, err := os.ReadFile(device + "/forwarding")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		out = append(out, device+" "+strings.TrimSpace(string(text)))
	}
	slices.Sort(out)
	return out
}

// leftovers returns the objects that containers leave on a host and in containerd without a
// cleanup.
func (h *host) leftovers(daemon *lab.Containerd) map[string][]string {
	h.t.Helper()
	check := func(err error) {
		h.t.Helper()
		if err != nil {
			h.t.Fatal(err)
		}
	}
	found := map[string][]string{"firewall": firewall(h.t)}
	api, err := client.New(daemon.Socket())
	check(err)
	defer api.Close()
	ctx := namespaces.WithNamespace(context.Background(), containerd.DefaultNamespace)
	// A deletion of this kind returns when containerd has collected what nothing refers to, such as
	// the layers of removed images. By itself it may collect a minute later on a busy host.
	lease, err := api.LeasesService().Create(ctx, leases.WithRandomID())
	check(err)
	check(api.LeasesService().Delete(ctx, lease, leases.SynchronousDelete))
	containers, err := api.Containers(ctx)
	check(err)
	for _, c := range containers {
		found["containers"] = append(found["containers"], c.ID())
	}
	leases, err := api.LeasesService().List(ctx)
	check(err)
	for _, l := range leases {
		found["leases"] = append(found["leases"], l.ID)
	}
	check(api.SnapshotService(containerd.DefaultSnapshotter).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		found["snapshots"] = append(found["snapshots"], i.Name)
		return nil
	}))
	links, err := netlink.LinkList()
	check(err)
	for _, l := range links {
		found["devices"] = append(found["devices"], l.Attrs().Name)
	}
	spaces := map[string]bool{}
	files, err := filepath.Glob("/proc/[0-9]*/ns/net")
	check(err)
	for _, f := range files {
		if to, err := os.Readlink(f); err == nil {
			spaces[to] = true
		}
	}
	found["network namespaces"] = slices.Collect(maps.Keys(spaces))
	for _, p := range processes(h.t) {
		if strings.Contains(p.args[0], "containerd-shim") && slices.Contains(p.args, daemon.Socket()) {
			found["shims"] = append(found["shims"], strings.Join(p.args, " "))
		}
	}
	for _, dir := range []string{"addresses", "containers"} {
		entries, err := os.ReadDir(filepath.Join(h.direct.Dir, dir))
		check(err)
		for _, e := range entries {
			found[dir+" on disk"] = append(found[dir+" on disk"], e.Name())
		}
	}
	// Version 1 has a tree for each controller.
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/memory"} {
		_ = filepath.WalkDir(root+daemon.CgroupParent(), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && path != root+daemon.CgroupParent() {
				found["control groups"] = append(found["control groups"], path)
			}
			return nil
		})
	}
	for _, list := range found {
		slices.Sort(list)
	}
	return found
}

// life runs an agent from its start, which cleans up after the previous one, to its end.
func (h *host) life() {
	h.t.Helper()
	h.start()
	poll.Until(h.t, "no container is left of an earlier agent", func() bool { return len(h.containers()) == 0 })
	h.must("agent", "stop")
	if code := h.wait(); code != 0 {
		h.t.Errorf("exit code %d\n%s", code, &h.errs)
	}
}

// ageOrphans makes the directories of containers old: one whose creation or removal was
// interrupted is an orphan, and is removed when it is old.
func (h *host) ageOrphans() {
	h.t.Helper()
	old := time.Now().Add(-time.Hour)
	dirs, err := filepath.Glob(filepath.Join(h.direct.Dir, "containers", "*"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, dir := range dirs {
		if err := os.Chtimes(dir, old, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			h.t.Error(err)
		}
	}
}

// asks returns the client address that the server outside sees for a session, or an error.
func (h *host) asks(key, server string) string {
	h.t.Helper()
	r := h.cli("session", "exec", key, "--", "sh", "-c", "nc "+server+" 7000; code=$?; echo; echo exit code $code")
	address, rest, _ := strings.Cut(r.out, "\n")
	if address == "" {
		h.t.Logf("%s: %q, %q, exit code %d", key, rest, r.err, r.code)
	}
	return address
}

// Containers of sessions reach addresses beyond the host, beside a Docker that drops other
// packets, and also while their agent is dead. They do not reach each other. Afterwards
// nothing of them remains.
func TestSessionsReachTheWorld(t *testing.T) {
	server := outside(t)
	besideDocker(t)
	h, daemon := newContainerdHost(t)
	h.configure("templates:" + shellTemplate)
	h.life() // cleans up after a killed agent of another test
	var atFirst []string
	poll.Until(t, "no rule of the firewall is left", func() bool {
		atFirst = firewall(t)
		return !strings.Contains(strings.Join(atFirst, "\n"), "holdfast")
	})
	h.start()
	h.open("first")
	h.must("agent", "stop")
	h.wait()
	h.life() // creates the objects that are created once
	var before map[string][]string
	defer func() {
		if t.Failed() {
			t.Logf("the firewall was at first\n%s\nand of the first agents were left\n%v", strings.Join(atFirst, "\n"), before)
		}
	}()
	poll.Until(t, "the containers of the first agents are gone, and their rules", func() bool {
		if before = h.leftovers(daemon); len(before["containers on disk"]) > 0 {
			h.ageOrphans() // the end of the first agent has interrupted a removal
			if err := h.api().(*containerd.Engine).Reap(t.Context()); err != nil {
				t.Error(err)
			}
		}
		return len(before["containers on disk"]) == 0 && len(before["shims"]) == 0 && len(before["control groups"]) == 0 && slices.Equal(before["firewall"], atFirst)
	})

	h.start()
	h.open("alice")
	h.open("bob")
	addresses := map[string]string{}
	for _, s := range h.sessions() {
		addresses[string(s.Key)], _, _ = strings.Cut(s.Address, ":")
	}
	good := func(when string) {
		t.Helper()
		for _, key := range []string{"alice", "bob"} {
			poll.Until(t, when+": "+key+" asks with the host's address", func() bool { return h.asks(key, server) == "192.0.2.1" })
		}
		if r := h.cli("session", "exec", "alice", "--", "ping", "-c", "1", "-W", "1", addresses["bob"]); r.code == 0 {
			t.Errorf("%s: alice reaches bob:\n%s", when, r.out)
		}
	}
	good("at first")
	if rules := output(t, "iptables", "-S", "FORWARD"); strings.Count(rules, "holdfast-net-") != 2 || !strings.HasPrefix(rules, "-P FORWARD DROP") {
		t.Errorf("beside Docker's rules:\n%s", rules)
	}
	h.kill()
	h.start()
	good("after the agent was killed")

	var kills []int     // ms
	if labtest.Long() { // interrupted creations stay for a minute
		kills = []int{0, 40, 80, 160}
	}
	for i, after := range kills {
		var wg sync.WaitGroup
		for k := range 3 {
			wg.Go(func() { h.knock(fmt.Sprintf("k%d-%d", i, k)) })
		}
		time.Sleep(time.Duration(after) * time.Millisecond)
		h.kill()
		wg.Wait()
		h.start()
	}
	h.settled()
	good("after the agent was killed in boots")
	h.must("agent", "stop")
	h.wait()
	h.life()
	h.ageOrphans()
	var after map[string][]string
	look := func() {
		after = h.leftovers(daemon)
		// What an earlier test has left may go meanwhile.
		for kind, had := range before {
			if left, ok := after[kind]; !ok {
				delete(before, kind)
			} else if kind == "snapshots" || kind == "containers on disk" {
				before[kind] = slices.DeleteFunc(had, func(s string) bool { return !slices.Contains(left, s) })
			}
		}
	}
	look()
	strays := labtest.Long() || len(after["snapshots"]) != len(before["snapshots"]) || len(after["shims"]) > 0
	if strays {
		t.Log("waiting until all strays are old")
		time.Sleep(61 * time.Second)
	}
	if err := h.api().(*containerd.Engine).Reap(t.Context()); err != nil {
		t.Error(err)
	}
	if strays {
		h.life() // an agent that ends keeps the bridge of a stray
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if look(); cmp.Equal(before, after) {
			break
		}
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("before and after:\n%s", diff)
	}
}
