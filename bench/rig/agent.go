package rig

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/linux/proc"
)

// Agent is an agent of a Fleet, with a directory of its own. One goroutine uses it.
type Agent struct {
	ID           holdfast.NodeID
	Dir          string   // data_dir and run_dir are data and run in it
	Config       string   // file
	Certificates string   // directory
	Socket       string   // of the API
	Argv         []string // the command
	API          *client.Client
	Process      *Process // nil while there is none
}

// Boot starts the agent and returns when it serves. It waits for at most Patience.
func (a *Agent) Boot(ctx context.Context) error {
	if err := os.MkdirAll(a.Dir, 0o700); err != nil {
		return err
	}
	var err error
	if a.Process, err = Start("agent "+string(a.ID), a.Argv, a.Dir+".log", Nice, false); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for {
		err := a.API.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-a.Process.Ended:
			return fmt.Errorf("the agent of %s ended before it was ready", a.ID)
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the agent of %s did not get ready: %w: %w", a.ID, ctx.Err(), err)
		}
	}
}

// Close kills the agent and its helper processes: every process of the lab with the
// agent's directory in its arguments.
func (a *Agent) Close() {
	if a.Process != nil {
		a.Process.Kill()
	}
	a.API.Close()
	pids, err := proc.Host.Pids()
	if err != nil {
		return // they end with the lab
	}
	for _, pid := range pids {
		args, err := proc.Host.Cmdline(pid)
		if err == nil && pid != os.Getpid() && strings.Contains(strings.Join(args, " "), a.Dir+"/") {
			_ = unix.Kill(pid, unix.SIGKILL) // ESRCH: it has ended
		}
	}
}
