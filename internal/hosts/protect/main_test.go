package protect_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/builtin"
	"holdfast/internal/hosts/protect/keep"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/internal/hosts/protect/ready"
	"holdfast/test/lab/labtest"
)

// Roles of the test binary beside those of protecttest.
const (
	roleKeeper    = "keeper"
	roleBare      = "bare-keeper" // without any backend
	roleProtect   = "protect"
	roleNeighbour = "neighbour"
	roleStall     = "stall" // a server that is ready later than it listens
	roleEcho      = "echo"
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
		case roleBare:
			syscall.Exit(protect.Main(args, nil, quiet()))
		case roleUDP:
			os.Exit(udpMain(args[0], args[1:]...))
		case roleEcho:
			os.Exit(echoMain(args[0]))
		case roleStall:
			os.Exit(stallMain(args[0], args[1] == "mptcp"))
		case roleNeighbour:
			os.Exit(neighbourMain())
		case roleProtect:
			os.Exit(protectMain(args[0]))
		}
	}
	// For the other roles, which would also sleep
	// (golang.org/doc/articles/race_detector).
	if err := os.Setenv("GORACE", "atexit_sleep_ms=10"); err != nil {
		panic(err)
	}
	os.Exit(labtest.Main(m))
}

func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

func keeper() []string { return []string{"/proc/self/exe", roleKeeper} }

// stallMain is the main function of stallServer.
func stallMain(address string, mptcp bool) int {
	var lc net.ListenConfig
	lc.SetMultipathTCP(mptcp)
	l, err := lc.Listen(context.Background(), "tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		return 1
	}
	up := time.Now().Add(stallFor)
	var asked atomic.Bool // the first question comes too early, also if the program that asks starts slowly
	fmt.Fprintln(os.Stderr, "server:", http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ready, health := time.Now().After(up), r.URL.Path == "/health"
		switch early := health && !asked.Swap(true); {
		case ready && !early:
			fmt.Fprintln(w, "pong")
		case health:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			time.Sleep(time.Until(up))
			panic(http.ErrAbortHandler) // ends the connection
		}
	})))
	return 1
}

// order has the instructions for a protect process.
type order struct {
	Addresses []string
	Backend   protect.Name
	LockDir   string
	Command   []string
	Ready     string // of --ready
	Keep      keep.Clients
	UDP       protect.Flows
	// At is the step at which it does Do: kill-protect, kill-keeper,
	// kill-command, kill-both (the command first) or kill-all (the keeper).
	At, Do string
}

// protectMain is the main function of a process that protects, and kills processes at the
// step of its order.
func protectMain(arg string) int {
	var o order
	if err := json.Unmarshal([]byte(arg), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	opts := protect.Options{
		Spec:  protect.Spec{Backend: o.Backend, Limit: 20 * time.Second, UDP: o.UDP, UDPFor: time.Minute},
		Drain: time.Second, Wait: time.Minute, Command: o.Command, Stdout: os.Stdout, Stderr: os.Stderr,
		Keeper: keeper(), LockDir: o.LockDir, Log: quiet(), Keep: o.Keep, KeepFor: time.Minute,
	}
	if o.Ready != "" {
		var err error
		if opts.Ready, err = ready.Parse(o.Ready); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
	}
	for _, a := range o.Addresses {
		addr, err := protect.ParseAddress(a)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		opts.Addresses = append(opts.Addresses, addr)
	}
	opts.Observe = func(step string) {
		if step == o.At {
			die(o)
		}
	}
	r, err := protect.Run(context.Background(), opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, "protect:", err)
	}
	return r.ExitCode
}

// die kills the processes that the order names: children of this process, and itself.
func die(o order) {
	if o.Do == "kill-keeper" || o.Do == "kill-all" {
		for _, pid := range children() {
			if isKeeper(pid) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		if o.Do == "kill-keeper" {
			return
		}
	}
	if o.Do == "kill-command" || o.Do == "kill-both" {
		for _, pid := range children() {
			if !isKeeper(pid) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
	if o.Do != "kill-command" {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
}
