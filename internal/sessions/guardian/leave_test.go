package guardian_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/vethnet"
	"holdfast/internal/sessions/guardian"
	"holdfast/test/poll"
)

// netAgent stands in for an agent with a container network. It arms a guardian for the
// network and waits to be killed, or until EOF on its input, when it exits in order.
func netAgent(arg string) int {
	var c vethnet.Config
	if err := json.Unmarshal([]byte(arg), &c); err != nil {
		return fail(err)
	}
	guard, err := guardian.Start(guardianArgv(filepath.Dir(c.Dir)), slog.Default())
	if err != nil {
		return fail(err)
	}
	if _, err := arm(guard, leaving(c)); err != nil {
		return fail(err)
	}
	fmt.Println(guard.Pid())
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	if err := guard.Close(); err != nil {
		return fail(err)
	}
	return 0
}

func leaving(c vethnet.Config) guardian.Plan {
	return guardian.Plan{Name: "a net", Undo: []guardian.Undo{{Kind: guardian.Leave, Nets: []vethnet.Config{c}}}}
}

// left is a net with one container and no agent.
type left struct {
	t         *testing.T
	config    vethnet.Config
	net       *vethnet.Net
	container *exec.Cmd
	guardian  *pidfd.Process
}

// newLeft starts an agent and ends it, by a kill or in order.
func newLeft(t *testing.T, name string, killed bool) *left {
	t.Helper()
	l := &left{t: t, config: vethnet.Config{
		Bridge: name, Subnet: netip.MustParsePrefix("10.99.0.0/24"), Dir: filepath.Join(t.TempDir(), "book"), Table: name + "-out", NAT: true,
	}}
	var err error
	if l.net, err = vethnet.New(l.config); err != nil {
		t.Fatal(err)
	}
	l.container = exec.Command("sleep", "inf")
	l.container.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if err := l.container.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.end()
		poll.Until(t, "the bridge can be removed", func() bool { return l.net.Remove(nil) == nil })
	})
	addr, err := l.net.Reserve("container")
	if err == nil {
		err = l.net.Attach(l.container.Process.Pid, "container", addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	arg, err := json.Marshal(l.config)
	if err != nil {
		t.Fatal(err)
	}
	agent := exec.Command("/proc/self/exe", "netAgent", string(arg))
	agent.Stderr = os.Stderr
	in, err := agent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := agent.StdoutPipe()
	if err == nil {
		err = agent.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	_, err = fmt.Fscan(out, &pid)
	if err == nil {
		l.guardian, err = pidfd.Open(pid)
	}
	if killed {
		err = errors.Join(err, agent.Process.Kill())
	}
	in.Close()
	if ended := agent.Wait(); (ended != nil) != killed || err != nil {
		t.Fatalf("the agent: %v, %v", ended, err)
	}
	t.Cleanup(func() {
		_ = l.guardian.Signal(unix.SIGKILL) // it may have ended
		l.guardian.Close()
	})
	return l
}

// end ends the container.
func (l *left) end() {
	_ = l.container.Process.Kill()
	_ = l.container.Wait() // killed, or waited for before
}

// there reports whether the net's bridge and its table exist.
func (l *left) there() (bridge, table bool) {
	l.t.Helper()
	_, err := netlink.LinkByName(l.config.Bridge)
	bridge = err == nil
	c, err := nftables.New()
	if err != nil {
		l.t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, t := range tables {
		table = table || t.Name == l.config.Table
	}
	return bridge, table
}

// stays fails unless bridge and table exist for longer than the guardian's pause.
func (l *left) stays(what string) {
	l.t.Helper()
	for end := boottime.Now().Add(5 * leaveSoon); end.Until() > 0; {
		if bridge, table := l.there(); !bridge || !table {
			l.t.Fatalf("%s: the bridge is there: %v, the table: %v", what, bridge, table)
		}
	}
}

// leaveSoon is the guardian's.
const leaveSoon = 50_000_000 // ns

// However the agent ends, the bridge and the NAT rules stay as long as a container is
// connected. After that they go, and so does the guardian.
func TestNetGoesWithTheLastContainer(t *testing.T) {
	for name, killed := range map[string]bool{"killed": true, "ended": false} {
		t.Run(name, func(t *testing.T) {
			l := newLeft(t, "leave-"+name, killed)
			l.stays("with a container")
			l.end()
			poll.Until(t, "the net is gone", func() bool { bridge, table := l.there(); return !bridge && !table })
			poll.Until(t, "the guardian is gone", l.guardian.Exited)
		})
	}
}

// A net that another agent has taken over stays.
func TestNetOfTheNextAgentStays(t *testing.T) {
	l := newLeft(t, "leave-next", true)
	release, err := l.net.Keep()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	poll.Until(t, "the guardian is gone", l.guardian.Exited)
	l.end()
	l.stays("with another agent")
}

// A host that shuts down does not wait for a lingering guardian.
func TestLingeringGuardianEndsWithTheHost(t *testing.T) {
	l := newLeft(t, "leave-host", true)
	poll.Until(t, "the guardian ends", func() bool {
		_ = l.guardian.Signal(unix.SIGTERM) // before the agent has gone it ignores SIGTERM
		return l.guardian.Exited()
	})
	l.stays("the host ends")
}

// A plan of kind Leave has no deadline and no other undo; every other plan has a
// deadline.
func TestWhatLastsHasNoDeadline(t *testing.T) {
	g := start(t, t.TempDir())
	c := vethnet.Config{Bridge: "leave-bad", Subnet: netip.MustParsePrefix("10.99.0.0/24"), Dir: t.TempDir()}
	late, both, none := leaving(c), leaving(c), guardian.Plan{Name: "none"}
	late.Deadline = boottime.Now().Add(leaveSoon)
	both.Undo = append(both.Undo, guardian.Undo{Kind: guardian.Continue})
	for _, p := range []guardian.Plan{late, both, none} {
		if _, err := g.Arm(p); err == nil {
			t.Errorf("%+v is taken on", p)
		}
	}
	armed, err := arm(g, leaving(c))
	if err != nil {
		t.Fatal(err)
	}
	if err := armed.Disarm(); err != nil { // a disarmed plan does not keep the guardian alive
		t.Error(err)
	}
}
