package install_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/builtin"
	"holdfast/internal/hosts/protect/install"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/lab/labtest"
)

// Roles of the test binary beside those of protecttest.
const (
	roleKeeper  = "keeper"
	roleInstall = "install"
	roleProtect = "protect"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		args := os.Args[2:]
		switch os.Args[1] {
		case protecttest.RoleServer:
			os.Exit(protecttest.ServerMain(args))
		case protecttest.RoleRestart:
			os.Exit(protecttest.RestartMain(args))
		case roleKeeper:
			// With the race detector os.Exit sleeps for a second. The variable
			// that prevents it is not in a keeper's environment.
			syscall.Exit(protect.Main(args, builtin.Backends(), quiet()))
		case roleInstall:
			os.Exit(installMain(args[0]))
		case roleProtect:
			os.Exit(protectMain(args[0]))
		}
	}
	if err := os.Setenv("GORACE", "atexit_sleep_ms=10"); err != nil {
		panic(err)
	}
	os.Exit(labtest.Main(m))
}

func needsRoot(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: it needs root, and a network namespace of its own")
	}
}

func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

func keeper() []string { return []string{"/proc/self/exe", roleKeeper} }

// at returns options with files of this test only, and uninstalls all at its end.
func at(t *testing.T) install.Options {
	t.Helper()
	dir := t.TempDir()
	o := install.Options{Keeper: keeper(), LockDir: filepath.Join(dir, "run"), Record: filepath.Join(dir, "lib", "protect.json"), Log: quiet()}
	t.Cleanup(func() {
		if _, err := install.Remove(context.Background(), o, nil); err != nil {
			t.Error("uninstall:", err)
		}
		nothingInstalled(t, o)
	})
	return o
}

// nothingInstalled fails if a file or a process is left.
func nothingInstalled(t *testing.T, o install.Options) {
	t.Helper()
	for _, dir := range []string{o.LockDir, filepath.Dir(o.Record)} {
		if left, err := os.ReadDir(dir); err != nil && !errors.Is(err, os.ErrNotExist) || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
	if pids := running(t, "standing", o.LockDir); len(pids) > 0 {
		t.Errorf("processes %v stand by", pids)
	}
}

// running returns the keepers with the first argument first and a socket in dir.
func running(t *testing.T, first, dir string) (pids []int) {
	t.Helper()
	all, err := proc.Host.Pids()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(pid int) bool {
		argv, err := proc.Host.Cmdline(pid)
		return err != nil || len(argv) != 4 || argv[1] != roleKeeper || argv[2] != first || filepath.Dir(argv[3]) != dir
	})
}

func ports(t *testing.T, b protect.Name, addresses ...string) (is []protect.Installed) {
	t.Helper()
	for _, a := range protecttest.Addresses(t, addresses...) {
		is = append(is, protect.Installed{Address: a, Backend: b})
	}
	return is
}

// serve starts a server, and returns its command and the file with its pid.
func serve(t *testing.T, address string) (argv []string, pidfile string) {
	t.Helper()
	argv = protecttest.GoServer(address)
	pidfile = protecttest.StartFile(t, 0, argv...)
	protecttest.AwaitListening(t, address)
	return argv, pidfile
}

// options returns the options of a protect of an installed port.
func options(t *testing.T, o install.Options, b protect.Name, command []string, addresses ...string) protect.Options {
	t.Helper()
	return protect.Options{
		Spec:  protect.Spec{Addresses: protecttest.Addresses(t, addresses...), Backend: b, Limit: protecttest.Patience},
		Drain: protecttest.Patience, Wait: protecttest.Patience, Command: command, Stdout: os.Stderr, Stderr: os.Stderr,
		Keeper: o.Keeper, LockDir: o.LockDir, Log: o.Log,
	}
}

// order has the instructions for a process, and the step at which it dies.
type order struct {
	LockDir, Record string
	Do              string // add, restore, remove
	Ports           []protect.Installed
	At              string // the step
	Backend         protect.Name
	Command         []string
	Victim          int // pid to kill at the step; 0 is the process itself
}

func (o order) run() int {
	i := install.Options{Keeper: keeper(), LockDir: o.LockDir, Record: o.Record, Log: quiet(), Observe: o.die}
	var err error
	switch ctx := context.Background(); o.Do {
	case "add":
		_, err = install.Add(ctx, i, o.Ports)
	case "restore":
		_, err = install.Restore(ctx, i)
	case "remove":
		_, err = install.Remove(ctx, i, nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, o.Do, err)
		return 1
	}
	return 0
}

func (o order) die(step string) {
	if step != o.At {
		return
	}
	if o.Victim != 0 {
		_ = unix.Kill(o.Victim, unix.SIGKILL)
		return
	}
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	select {}
}

func parse(arg string) (o order) {
	if err := json.Unmarshal([]byte(arg), &o); err != nil {
		panic(err)
	}
	return o
}

func installMain(arg string) int { return parse(arg).run() }

// protectMain is the main function of a protect of an installed port.
func protectMain(arg string) int {
	o := parse(arg)
	p := protect.Options{
		Spec:  protect.Spec{Backend: o.Backend, Limit: 20 * time.Second},
		Drain: time.Second, Wait: time.Minute, Command: o.Command, Stdout: os.Stderr, Stderr: os.Stderr,
		Keeper: keeper(), LockDir: o.LockDir, Log: quiet(), Observe: o.die,
	}
	for _, i := range o.Ports {
		p.Addresses = append(p.Addresses, i.Address)
	}
	r, err := protect.Run(context.Background(), p)
	if err != nil {
		fmt.Fprintln(os.Stderr, "protect:", err)
	}
	if !r.Installed {
		fmt.Fprintln(os.Stderr, "protect: not by the standing keeper")
		return 3
	}
	return r.ExitCode
}
