package lab_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// childRole is the environment variable with the role of the test binary. In a role it
// enters a lab of its own.
const childRole = "HOLDFAST_LAB_TEST_ROLE"

const (
	roleEcho    = "echo"    // print arguments and input, exit with 7
	roleSignal  = "signal"  // wait for a signal, exit with its number + 50
	roleSuicide = "suicide" // end by SIGKILL
	roleEngine  = "engine"  // run an engine with containers until the input ends
	roleRestart = "restart" // print a container's state after a restart of the daemon
)

// report is the line that a child prints when it is ready.
type report struct {
	PIDs string `json:"pids"` // its pid namespace
	Net  string `json:"net"`  // its network namespace
	Dir  string `json:"dir"`  // its engine's directory
}

// child is the main function of the test binary in a role.
func child(role string) int {
	if !lab.Inside() {
		code, err := lab.Reenter()
		if err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
		}
		return code
	}
	code, err := act(role)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return code
}

func act(role string) (int, error) {
	switch role {
	case roleEcho:
		input, err := io.ReadAll(os.Stdin)
		fmt.Printf("%q %s", os.Args[1:], input)
		return 7, err
	case roleSignal:
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
		if err := tell(""); err != nil {
			return 1, err
		}
		return int((<-signals).(syscall.Signal)) + 50, nil
	case roleSuicide:
		return 1, unix.Kill(os.Getpid(), unix.SIGKILL)
	case roleEngine:
		return 0, runEngine(true, func(e *lab.Engine, _ *docker.Engine, _ string) error {
			if err := tell(filepath.Dir(e.DataRoot())); err != nil {
				return err
			}
			_, err := io.Copy(io.Discard, bufio.NewReader(os.Stdin))
			return err
		})
	case roleRestart:
		return 0, runEngine(false, func(e *lab.Engine, api *docker.Engine, id string) error {
			if err := e.Restart(context.Background()); err != nil {
				return err
			}
			c, err := api.Inspect(context.Background(), id)
			fmt.Println(c.State)
			return err
		})
	}
	return 1, fmt.Errorf("no role %q", role)
}

// tell prints the report of a ready child.
func tell(dir string) error {
	pids, pidErr := os.Readlink("/proc/self/ns/pid")
	net, netErr := os.Readlink("/proc/self/ns/net")
	return errors.Join(pidErr, netErr, json.NewEncoder(os.Stdout).Encode(report{PIDs: pids, Net: net, Dir: dir}))
}

// runEngine calls use with an engine that has two containers; id is the second one.
func runEngine(liveRestore bool, use func(e *lab.Engine, api *docker.Engine, id string) error) (err error) {
	ctx := context.Background()
	e, err := lab.StartEngine(ctx, lab.Options{LiveRestore: liveRestore})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Stop()) }()
	busybox, err := lab.Busybox()
	if err != nil {
		return err
	}
	if err := e.Import(ctx, busybox); err != nil {
		return err
	}
	api, err := docker.Open(ctx, docker.Config{Host: e.Host()})
	if err != nil {
		return err
	}
	defer api.Close()
	var id string
	for range 2 {
		// With an init the container ends at SIGTERM. A daemon that stops waits for that.
		if id, err = api.Create(ctx, engine.Spec{Image: labtest.Busybox, Init: true}); err != nil {
			return err
		}
		if err := api.Start(ctx, id); err != nil {
			return err
		}
	}
	return use(e, api, id)
}
