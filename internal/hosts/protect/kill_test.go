package protect_test

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// children returns the processes that this one has started and not reaped.
func children() []int { return childrenOf(os.Getpid()) }

func childrenOf(parent int) []int {
	pids, err := proc.Host.Pids()
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(pids, func(pid int) bool {
		s, err := proc.Host.Stat(pid)
		return err != nil || s.PPid != parent
	})
}

func isKeeper(pid int) bool {
	argv, err := proc.Host.Cmdline(pid)
	return err == nil && len(argv) > 1 && argv[1] == roleKeeper
}

// At every step of a protect a process is killed: the protect, the keeper, the
// command, command and protect, or keeper and protect. In each case nothing is left
// behind, every waiting client is let through, and the port can be protected again. Once
// the killed processes are dead, no SYN is lost, so no client loses two. `holdfast bench
// reload --kills` measures the time until then.
func TestKilled(t *testing.T) {
	needsRoot(t)
	for i, b := range both { // which take turns without -long
		for j, step := range []string{"prepare", "hold", "drain", "start", "command"} {
			for k, do := range []string{"kill-protect", "kill-keeper", "kill-command", "kill-both", "kill-all"} {
				hasCommand := step == "start"
				if !hasCommand && (do == "kill-command" || do == "kill-both") || !labtest.Long() && (j+k)%len(both) != i {
					continue
				}
				t.Run(string(b)+"/"+step+"/"+do, func(t *testing.T) { testKilled(t, b, step, do) })
			}
		}
	}
}

func testKilled(t *testing.T, b protect.Name, step, do string) {
	before := protecttest.Look(t)
	address := protecttest.FreePort(t)
	argv := protecttest.GoServer(address)
	pidfile := protecttest.StartFile(t, 0, argv...)
	protecttest.AwaitListening(t, address)
	load := protecttest.StartLoad(t, address, 5*time.Millisecond, nil)
	dir := t.TempDir()
	o := order{
		Addresses: []string{address}, Backend: b, LockDir: dir, At: step, Do: do,
		Command: protecttest.Restart(pidfile, 0, 300*time.Millisecond, argv...),
	}
	arg, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", roleProtect, string(arg))
	cmd.Stderr = os.Stderr
	_ = cmd.Run() // how it ends is part of the case
	awaitNoHelper(t, do)
	dead := time.Now()
	// The process that killed the old server may have died before it started a new one.
	if len(protecttest.Listening(t, portOf(t, address))) == 0 {
		if err := protecttest.KillFile(pidfile); err != nil {
			t.Fatal(err)
		}
		s := protecttest.Start(t, 0, argv...)
		if err := os.WriteFile(pidfile, []byte(strconv.Itoa(s.Pid())), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	protecttest.AwaitListening(t, address)
	total, failed, longest := load.Stop()
	t.Logf("%d clients, %d failed, longest %v", total, len(failed), longest)
	if n := load.LostAfter(dead); n > 0 {
		t.Errorf("%d clients lost a SYN when all were dead", n)
	}
	for _, err := range failed {
		var timeout net.Error
		switch {
		case step == "prepare": // nothing was held, and nothing restarted
			t.Error("a client:", err)
		case errors.As(err, &timeout) && timeout.Timeout():
			t.Error("a client was never released:", err)
		}
	}
	again := options(t, b, protecttest.Restart(pidfile, 0, 0, argv...), address)
	again.LockDir = dir
	if _, err := protect.Run(t.Context(), again); err != nil {
		t.Error("the next protect:", err)
	}
	protecttest.NoReuseport(t, address)
	if err := protecttest.KillFile(pidfile); err != nil {
		t.Fatal(err)
	}
	protecttest.NothingLeft(t, before)
	if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) > 0 {
		t.Errorf("locks are left: %v, %v", left, err)
	}
}

// A protect of two ports is killed with all its processes. The next protect of either
// port alone finds the residue of that port, even after a protect that could not start a
// keeper.
func TestEachPortIsNoted(t *testing.T) {
	needsRoot(t)
	before := protecttest.Look(t)
	addresses := []string{protecttest.FreePort(t), protecttest.FreePort(t)}
	slices.SortFunc(addresses, func(a, b string) int { return int(portOf(t, b)) - int(portOf(t, a)) })
	var servers []*protecttest.Server
	for _, a := range addresses {
		servers = append(servers, protecttest.Start(t, 0, protecttest.GoServer(a, "plain")...))
		protecttest.AwaitListening(t, a)
	}
	dir := t.TempDir()
	arg, err := json.Marshal(order{
		Addresses: addresses, Backend: protect.Park, LockDir: dir, Command: []string{"true"}, At: "hold", Do: "kill-all",
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", roleProtect, string(arg))
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err == nil {
		t.Error("it was not killed")
	}
	awaitNoHelper(t, "kill-all")
	for _, a := range addresses {
		poll.Until(t, "the keeper's own socket is gone", func() bool {
			return len(protecttest.Listening(t, portOf(t, a))) == 1
		})
		if has := protecttest.Reuseport(t, portOf(t, a)); !has[netip.MustParseAddrPort(a)] {
			t.Fatalf("nothing is left at %s, so the test shows nothing", a)
		}
		o := options(t, protect.Park, []string{"true"}, a)
		o.LockDir, o.Keeper = dir, []string{"/proc/self/no-such-program"}
		if _, err := protect.Run(t.Context(), o); err == nil {
			t.Error("a protect without a keeper")
		}
		o.Keeper = keeper()
		if _, err := protect.Run(t.Context(), o); err != nil {
			t.Error(err)
		}
		protecttest.NoReuseport(t, a)
	}
	if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) > 0 {
		t.Errorf("locks are left: %v, %v", left, err)
	}
	for _, s := range servers {
		s.Kill()
	}
	protecttest.NothingLeft(t, before)
}

func portOf(t *testing.T, address string) uint16 {
	t.Helper()
	return protecttest.Addresses(t, address)[0].Port
}

// awaitNoHelper waits until no keeper and no command is left.
func awaitNoHelper(t *testing.T, do string) {
	t.Helper()
	poll.Until(t, "no keeper or command is left after "+do, func() bool {
		pids, err := proc.Host.Pids()
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(pids, func(pid int) bool {
			argv, err := proc.Host.Cmdline(pid)
			return err == nil && (len(argv) == 0 && dying(pid) || len(argv) > 1 &&
				(argv[1] == roleKeeper || argv[1] == roleProtect || argv[1] == protecttest.RoleRestart))
		})
	})
}

// dying reports whether a process without memory, and therefore without a command line,
// has threads that may still have sockets open.
func dying(pid int) bool {
	s, err := proc.Host.Stat(pid)
	if err != nil {
		return false
	}
	threads, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	return err == nil && (s.State != 'Z' || len(threads) > 1)
}

// LostAfter, which the test above uses, finds clients with unanswered SYNs: those of a
// stopped keeper.
func TestLostSYNsAreFound(t *testing.T) {
	needsRoot(t)
	address := protecttest.FreePort(t)
	protecttest.Start(t, 0, protecttest.GoServer(address)...)
	protecttest.AwaitListening(t, address)
	k := startKeeper(t)
	spec := protect.Spec{Addresses: protecttest.Addresses(t, address), Backend: protect.NFQueue, Limit: 2 * protecttest.Patience}
	if _, err := k.Hold(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(k.Pid(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	load := protecttest.StartLoad(t, address, 100*time.Millisecond, nil)
	time.Sleep(2500 * time.Millisecond) // the second SYN comes after one
	if err := unix.Kill(k.Pid(), unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := k.Release(); err != nil {
		t.Fatal(err)
	}
	<-k.Released()
	poll.Until(t, "clients were served", func() bool { return load.Total() > 10 })
	load.Stop()
	if early, late := load.LostAfter(began), load.LostAfter(time.Now()); early == 0 || late != 0 {
		t.Errorf("%d clients lost a SYN after the keeper was stopped, %d after it continued", early, late)
	}
}
