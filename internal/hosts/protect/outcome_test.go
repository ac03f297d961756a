package protect_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/protecttest"
)

// Two servers on ports of both families are restarted under one hold.
func TestSeveralPorts(t *testing.T) {
	needsRoot(t)
	for _, b := range both {
		t.Run(string(b), func(t *testing.T) {
			before := protecttest.Look(t)
			addresses := []string{protecttest.FreePort(t), "[::1]:18083"}
			argv := protecttest.GoServer(strings.Join(addresses, ","))
			pidfile := protecttest.StartFile(t, 0, argv...)
			var loads []*protecttest.Load
			for _, a := range addresses {
				protecttest.AwaitListening(t, a)
				loads = append(loads, protecttest.StartLoad(t, a, 20*time.Millisecond, nil))
			}
			for range 3 {
				r, err := protect.Run(t.Context(), options(t, b, protecttest.Restart(pidfile, 0, 50*time.Millisecond, argv...), addresses...))
				if err != nil || r.Released.Reason != protect.NewListens {
					t.Errorf("report: %+v, %v", r, err)
				}
			}
			for _, l := range loads {
				noneFailed(t, l)
			}
			if err := protecttest.KillFile(pidfile); err != nil {
				t.Fatal(err)
			}
			protecttest.NothingLeft(t, before)
		})
	}
}

// The exit code is that of the command. If a signal ends the command, all connections are
// released.
func TestExitCode(t *testing.T) {
	needsRoot(t)
	address := protecttest.FreePort(t)
	protecttest.Start(t, 0, protecttest.GoServer(address)...)
	protecttest.AwaitListening(t, address)
	for _, c := range []struct {
		name, script string
		interrupt    bool
		code         int
		why          protect.Reason
	}{
		{"well", "exit 0", false, 0, protect.OldStayed},
		{"badly", "exit 42", false, 42, protect.OldStayed},
		{"killed", "kill -9 $$", false, 128 + 9, protect.CommandKill},
		{"interrupted", "echo; exec sleep 600", true, 128 + 15, protect.CommandKill},
		{"interrupted, and ends well", "trap 'exit 0' TERM; echo; while :; do sleep 0.05; done", true, 0, protect.CommandKill},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o := options(t, protect.Auto, []string{"sh", "-c", c.script}, address)
			o.Stdout = started(func() {
				if c.interrupt {
					cancel()
				}
			})
			r, err := protect.Run(ctx, o)
			if err != nil || r.ExitCode != c.code || r.Released.Reason != c.why {
				t.Errorf("report: %+v, %v", r, err)
			}
		})
	}
}

// started calls its function when a command prints something.
type started func()

func (s started) Write(b []byte) (int, error) {
	s()
	return len(b), nil
}

// If no backend works, or the caller is not root, a protect reports that and holds
// nothing.
func TestCannot(t *testing.T) {
	needsRoot(t)
	before := protecttest.Look(t)
	address := protecttest.FreePort(t)
	s := protecttest.Start(t, 0, protecttest.GoServer(address)...)
	protecttest.AwaitListening(t, address)
	load := protecttest.StartLoad(t, address, 10*time.Millisecond, nil)
	o := options(t, protect.Auto, []string{"true"}, address)
	o.Keeper = []string{"/proc/self/exe", roleBare}
	if r, err := protect.Run(t.Context(), o); !errors.Is(err, protect.ErrNoBackend) || !strings.Contains(holdfast.HintOf(err), "--check") || r.Backend != "" {
		t.Errorf("a kernel without any backend: %+v, %v", r, err)
	}
	cmd := exec.Command("/proc/self/exe", roleProtect, `{"Addresses":["`+address+`"],"LockDir":"/nowhere","Command":["true"]}`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), protect.ErrNotRoot.Error()) {
		t.Errorf("without root: %v, %s", err, out)
	}
	noneFailed(t, load)
	s.Kill()
	protecttest.NothingLeft(t, before)
}

// A keeper that hangs does not hold forever.
func TestKeeperHangs(t *testing.T) {
	needsRoot(t)
	t.Parallel() // it takes its time
	address := protecttest.FreePort(t)
	protecttest.Start(t, 0, protecttest.GoServer(address)...)
	protecttest.AwaitListening(t, address)
	o := options(t, protect.NFQueue, []string{"true"}, address)
	o.Limit, o.Drain = 500*time.Millisecond, 0
	o.Observe = func(step string) {
		if step != "hold" {
			return
		}
		for _, pid := range children() {
			if isKeeper(pid) {
				if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if _, err := protect.Run(t.Context(), o); !errors.Is(err, protect.ErrKeeperGone) {
		t.Errorf("the keeper was stopped: %v", err)
	}
	if _, err := protecttest.Ask(address, "/"); err != nil {
		t.Error("a client is held:", err)
	}
	if left, err := os.ReadDir(o.LockDir); err != nil || len(left) > 0 {
		t.Errorf("locks are left: %v, %v", left, err)
	}
}
