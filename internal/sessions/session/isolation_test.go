package session

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/platform/linux/netns"
	"holdfast/internal/sessions/pool"
	"holdfast/test/lab/labtest"
)

// secret is the key of the session whose traces must not be visible to other sessions.
const secret = "secret-of-alice"

// secretPort is a port that the session listens on, and its form in /proc/net/tcp.
const (
	secretPort    = 47113
	secretPortHex = ":B809"
)

// view is a view from inside a container, and the part of it that would be a trace of
// the secret session.
type view struct {
	name  string
	see   func() string
	trace string
}

// views returns all views of a session's container.
func (n *node) views(t *testing.T, r holdfast.Route, hers string) []view {
	t.Helper()
	shell := func(script string) func() string { return func() string { return n.shell(t, r, script) } }
	c, err := n.engine.Inspect(t.Context(), r.ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	all := []view{
		{"processes", shell(`cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' '; true`), secret},
		{"environments", shell(`env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n'; true`), secret},
		{"files", shell(`find / \( -path /proc -o -path /sys \) -prune -o -name '*` + secret + `*' -print`), secret},
		{"what names her", shell(`hostname; cat /etc/hostname /etc/hosts /etc/resolv.conf`), secret},
		{"the workspace", shell(`cat /work/space/whose`), secret},
		{"mounts", shell(`cat /proc/1/mountinfo`), secret},
		{"sockets of files and without", shell(`cat /proc/net/unix`), "@" + secret},
		{"connections", shell(`cat /proc/net/tcp /proc/net/tcp6`), secretPortHex},
		{"tracked connections", func() string { return tracked(t, c.Pid) }, fmt.Sprint(secretPort)},
	}
	if hers != "" {
		all = append(all, view{"addresses", shell(`cat /proc/net/fib_trie`), hers + "\n"})
	}
	if c.Labels[LabelWarm] != "" {
		all = append(all, view{"what it was told", shell(`cat /run/holdfast/*.json; ls -la /run/holdfast`), secret})
	}
	return all
}

// dirty makes the secret session leave every trace. Its connections stay open until the
// test ends, which is longer than the session lives.
func (n *node) dirty(t *testing.T, r holdfast.Route) {
	t.Helper()
	n.shell(t, r, `for d in / /tmp /dev/shm /var/tmp /work/space; do mkdir -p $d && echo x >$d/`+secret+`; done
		NAME_OF=`+secret+` sh -c 'while :; do sleep 100; done' `+secret+` </dev/null >/dev/null 2>&1 &`)
	c, err := n.engine.Inspect(t.Context(), r.ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	err = netns.Do(netns.OfProcess(c.Pid), func() error {
		for network, address := range map[string]string{"unix": "@" + secret, "tcp": fmt.Sprint(":", secretPort)} {
			l, err := (&net.ListenConfig{}).Listen(context.Background(), network, address)
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
		}
		return track()
	})
	if err != nil {
		t.Fatal(err)
	}
	// An open connection to a port of the secret session.
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(strings.Split(r.Address, ":")[0], fmt.Sprint(secretPort)), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
}

// track adds a connection to the conntrack table of the thread's network namespace.
// Without rules in the namespace, the kernel tracks no connections.
func track() error {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer h.Close()
	here, there := net.IP{192, 0, 2, 1}, net.IP{192, 0, 2, 2}
	return h.ConntrackCreate(netlink.ConntrackTable, netlink.FAMILY_V4, &netlink.ConntrackFlow{
		FamilyType: netlink.FAMILY_V4, TimeOut: 600,
		Forward: netlink.IPTuple{SrcIP: here, DstIP: there, SrcPort: secretPort, DstPort: 53, Protocol: unix.IPPROTO_UDP},
		Reverse: netlink.IPTuple{SrcIP: there, DstIP: here, SrcPort: 53, DstPort: secretPort, Protocol: unix.IPPROTO_UDP},
	})
}

// tracked returns the conntrack table of a process's network namespace.
func tracked(t *testing.T, pid int) (out string) {
	t.Helper()
	err := netns.Do(netns.OfProcess(pid), func() error {
		h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer h.Close()
		flows, err := h.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		for _, f := range flows {
			out += f.String() + "\n"
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// isolated checks that a session's container shares no namespace with another container
// or with this host, and shows no trace.
func (n *node) isolated(t *testing.T, r holdfast.Route, hers string, spaces map[string]string) {
	t.Helper()
	for _, v := range n.views(t, r, hers) {
		if text := v.see(); strings.Contains(text, v.trace) {
			t.Errorf("%s of %s shows a trace of %s:\n%s", v.name, r.Key, v.trace, text)
		}
	}
	n.ownSpaces(t, r, spaces)
}

// ownSpaces records the owner of each namespace.
func (n *node) ownSpaces(t *testing.T, r holdfast.Route, spaces map[string]string) {
	t.Helper()
	c, err := n.engine.Inspect(t.Context(), r.ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"net", "mnt", "pid", "ipc", "uts"} {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", c.Pid, kind))
		if err != nil {
			t.Fatal(err)
		}
		if whose := spaces[link]; whose != "" {
			t.Errorf("%s shares %s with %s", r.Key, link, whose)
		}
		spaces[link] = string(r.Key)
	}
}

// ourSpaces returns the namespaces of this host.
func ourSpaces(t *testing.T) map[string]string {
	t.Helper()
	spaces := map[string]string{}
	for _, kind := range []string{"net", "mnt", "pid", "ipc", "uts"} {
		link, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		spaces[link] = "this host"
	}
	return spaces
}

// TestNoSessionSeesAnother: a container in a network of the agent's, or a warm container, shows
// no trace of a session that runs beside it or that ran before it. In the secret
// session's own container, each view finds the traces.
func TestNoSessionSeesAnother(t *testing.T) {
	for _, c := range []struct {
		name       string
		warm       bool
		containerd bool
	}{
		{name: "networks"},
		{name: "warm containers", warm: true},
		{name: "networks on containerd", containerd: true},
		{name: "warm containers on containerd", warm: true, containerd: true},
	} {
		if c.containerd && (labtest.OnContainerd() || !labtest.Long()) {
			continue // with -on-containerd the engine of the first two is containerd
		}
		t.Run(c.name, func(t *testing.T) {
			e := openEngine
			if c.containerd {
				e = onContainerd
			}
			x := newIsolation(t, e(t), c.warm)
			alice := x.serve(t, secret)
			x.dirty(t, alice)
			hers := strings.Split(alice.Address, ":")[0]
			for _, v := range x.views(t, alice, hers) {
				if text := v.see(); !strings.Contains(text, v.trace) {
					t.Errorf("%s of the secret session does not show %s, so it would not show a leak:\n%s", v.name, v.trace, text)
				}
			}
			spaces := ourSpaces(t)
			x.ownSpaces(t, alice, spaces)
			x.isolated(t, x.serve(t, "beside"), hers, spaces)
			if _, err := x.Stop(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			x.full(t)
			x.isolated(t, x.serve(t, "after"), "", spaces) // another session may have the address by then
			if x.warm && !(x.isWarm(t, x.serve(t, "beside")) && x.isWarm(t, x.serve(t, "after"))) {
				t.Error("a session used no warm container")
			}
		})
	}
}

// isolation is a node with a pool.
type isolation struct {
	*node
	full func(*testing.T)
	warm bool
}

func newIsolation(t *testing.T, e engine.Engine, warm bool) *isolation {
	t.Helper()
	dir := t.TempDir()
	for _, key := range []string{secret, "beside", "after"} {
		if err := os.Mkdir(filepath.Join(dir, key), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, key, "whose"), []byte(key), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tmpl := pooled()
	tmpl.Env = map[string]string{"NAME_OF": "{key}"}
	tmpl.Mounts = []engine.Mount{{Type: "bind", Source: dir + "/{key}", Target: "/work/space"}}
	cfg := Config{Templates: []Template{tmpl}}
	var own pool.Networks
	full := func(*testing.T) {}
	if _, ok := e.(*docker.Engine); ok {
		nets := newNets(t, t.TempDir(), 2)
		nets.fill(t)
		own = nets
	}
	if !warm {
		return &isolation{newNode(t, setup{engine: e, nets: own, cfg: cfg}), full, false}
	}
	warms := newWarmsIn(t, e, own, t.Name(), tmpl, 2)
	n := newNode(t, setup{engine: e, warm: warms, nets: own, cfg: cfg})
	warms.fill(t)
	return &isolation{n, warms.full, true}
}

// onContainerd connects to the package's containerd.
func onContainerd(t *testing.T) engine.Engine {
	t.Helper()
	return labtest.OpenContainerd(t, labtest.ContainerdConfig(labtest.SharedContainerd(t)))
}
