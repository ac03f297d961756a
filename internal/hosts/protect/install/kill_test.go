package install_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/install"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

func itoa(n int) string { return strconv.Itoa(n) }

func quietest() *slog.Logger { return slog.New(slog.DiscardHandler) }

// process runs a role of the test binary and returns its exit code; -1: it was killed.
func (o order) process(t *testing.T, role string) int {
	t.Helper()
	arg, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", role, string(arg))
	cmd.Stderr = os.Stderr
	_ = cmd.Run() // how it ends is the answer
	return cmd.ProcessState.ExitCode()
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// restarting reports whether a command that restarts a server runs.
func restarting(t *testing.T) bool {
	t.Helper()
	pids, err := proc.Host.Pids()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(pids, func(pid int) bool {
		argv, err := proc.Host.Cmdline(pid)
		return err == nil && len(argv) > 1 && argv[1] == protecttest.RoleRestart
	})
}

// Install, restore and uninstall, killed at any step, delay no client. The next one
// repairs the state that they leave.
func TestKilledInstalling(t *testing.T) {
	needsRoot(t)
	before := protecttest.Look(t)
	address := protecttest.FreePort(t)
	argv, pidfile := serve(t, address)
	load := protecttest.StartLoad(t, address, 10*time.Millisecond, nil)
	for _, do := range []string{"add", "restore", "remove"} {
		for _, step := range []string{"lock", "start", "keeper", "record"} {
			t.Run(do+"/"+step, func(t *testing.T) {
				o := at(t)
				is := ports(t, protect.Auto, address)
				switch {
				case do == "remove" && step == "start":
					return // which it has not
				case do == "restore":
					kill(t, add(t, o, is...).Keeper.Pid)
				case do == "remove":
					add(t, o, is...)
				}
				if code := (order{LockDir: o.LockDir, Record: o.Record, Do: do, Ports: is, At: step}).process(t, roleInstall); code != -1 {
					t.Errorf("it was not killed: exit code %d", code)
				}
				protecttest.NothingLeft(t, before)
				status(t, o)
				if _, err := protect.Run(t.Context(), options(t, o, protect.Auto, protecttest.Restart(pidfile, 0, 0, argv...), address)); err != nil {
					t.Error("a protect after it:", err)
				}
				if s := add(t, o, is...); len(s.Ports) != 1 || !s.Ports[0].Standing || !s.Ports[0].Recorded {
					t.Errorf("installed after it: %+v", s)
				}
			})
		}
	}
	poll.Until(t, "clients came", func() bool { return load.Total() >= 20 })
	if _, failed, _ := load.Stop(); len(failed) > 0 {
		t.Errorf("clients failed: %v", failed)
	}
	protecttest.NothingLeft(t, before)
}

// At every step of a protect of an installed port, the protect or the standing keeper is
// killed. All clients are released, nothing is left, and both can be started again.
func TestKilledHolding(t *testing.T) {
	needsRoot(t)
	for i, b := range both { // which take turns without -long
		for j, step := range []string{"prepare", "hold", "drain", "start", "command"} {
			for k, victim := range []string{"protect", "keeper"} {
				if !labtest.Long() && (j+k)%len(both) != i {
					continue
				}
				t.Run(string(b)+"/"+step+"/"+victim, func(t *testing.T) { killedHolding(t, b, step, victim) })
			}
		}
	}
}

func killedHolding(t *testing.T, b protect.Name, step, victim string) {
	before := protecttest.Look(t)
	o := at(t)
	address := protecttest.FreePort(t)
	argv, pidfile := serve(t, address)
	is := ports(t, protect.Auto, address)
	pid := add(t, o, is...).Keeper.Pid
	load := protecttest.StartLoad(t, address, 10*time.Millisecond, nil)
	restart := protecttest.Restart(pidfile, 0, 100*time.Millisecond, argv...)
	w := order{LockDir: o.LockDir, Ports: is, At: step, Backend: b, Command: restart}
	if victim == "keeper" {
		w.Victim = pid
	}
	w.process(t, roleProtect)
	poll.Until(t, "the command is done", func() bool { return !restarting(t) })
	if len(protecttest.Listening(t, is[0].Port)) == 0 || step != "command" {
		// The restarting command may have died half-way.
		if err := exec.Command(restart[0], restart[1:]...).Run(); err != nil {
			t.Fatal(err)
		}
	}
	protecttest.AwaitListening(t, address)
	_, failed, longest := load.Stop()
	t.Logf("%d failed, longest %v", len(failed), longest)
	for _, err := range failed {
		if isTimeout(err) {
			t.Error("a client was never released:", err)
		}
	}
	s, err := install.Restore(t.Context(), o)
	if err != nil || (s.Keeper.Pid == pid) != (victim == "protect") {
		t.Errorf("restored: %+v, %v; it was process %d", s, err, pid)
	}
	r, err := protect.Run(t.Context(), options(t, o, b, restart, address))
	if err != nil || !r.Installed {
		t.Errorf("the next protect: %+v, %v", r, err)
	}
	if now := status(t, o).Ports[0].Now; now != nil {
		t.Errorf("the hold does not end: %+v", now)
	}
	protecttest.NoReuseport(t, address)
	protecttest.NothingLeft(t, before)
}
