package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
)

func (a *app) agentCmd() *cobra.Command {
	var (
		upgrade bool
		trial   time.Duration
	)
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of this host, until it is told to end",
		Long: "Run the agent of this host until it is told to end.\n" +
			"SIGTERM and Ctrl-C drain the node first; SIGUSR2 ends the agent and leaves its containers to the next one.\n" +
			"With --upgrade the agent that runs is replaced by the program on disk that it was started from: no connect is refused meanwhile,\n" +
			"sessions stay, and if the new one cannot serve the old one goes on.",
		Example: "  holdfast agent\n  holdfast agent --upgrade\n  holdfast agent stop --keep",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if upgrade {
				return a.upgradeAgent(cmd, trial)
			}
			if cmd.Flags().Changed("trial") {
				return usage(cmd, errors.New("--trial goes with --upgrade"))
			}
			if a.deps.RunAgent == nil {
				return errors.New("this build has no agent")
			}
			return a.deps.RunAgent(cmd.Context(), AgentRun{
				Flags: cmd.Flags(), Socket: a.givenSocket(), Stdout: a.ui.out, Stderr: a.ui.err,
				Step:    a.drainStep,
				Drained: func(r holdfast.DrainReport) { _ = a.drained(r) }, // the agent ends all the same
			})
		},
	}
	cmd.Flags().BoolVar(&upgrade, "upgrade", false, "replace the agent that runs by the program on disk")
	cmd.Flags().DurationVar(&trial, "trial", api.DefaultTrial, "with --upgrade: how long the old agent stands by once the new one serves")
	if a.deps.AgentFlags != nil {
		a.deps.AgentFlags(cmd.Flags())
	}
	return group(cmd, a.agentStop())
}

func (a *app) agentStop() *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use:     "stop",
		Short:   "Make the agent end, and wait until it has",
		Long:    "Make the agent drain its node and end, or with --keep end and leave its containers to the next agent; wait until it has ended.",
		Example: "  holdfast agent stop\n  holdfast agent stop --keep",
		Args:    noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, noLimit, func(ctx context.Context, c *client.Client) error { return a.stopAgent(ctx, c, keep) })
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the containers running for the next agent")
	return cmd
}

func (a *app) stopAgent(ctx context.Context, c *client.Client, keep bool) error {
	v, err := c.Version(ctx)
	if err != nil {
		return err
	}
	// Before the agent ends, so that its pid is still its own.
	var process *os.File
	if a.remoteURL() == "" {
		if process, err = openProcess(v.PID); err != nil {
			return err
		}
	}
	if err := c.StopAgent(ctx, keep); err != nil {
		return err
	}
	said := "the agent has been told to end"
	if process != nil {
		defer process.Close()
		done := a.ui.progress("waiting for the agent to end")
		err := waitEnd(ctx, process)
		done()
		if err != nil {
			return err
		}
		said = "the agent has ended"
	}
	if keep {
		said += " and left its containers to the next one"
	}
	return a.ui.result(map[string]bool{"ended": process != nil, "keep": keep}, func(w io.Writer) { fmt.Fprintln(w, said) })
}

// openProcess returns a pidfd, or nil where the agent's pid is not one of ours
// to see (another pid namespace).
func openProcess(pid int) (*os.File, error) {
	if pid <= 0 {
		return nil, nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("watching the agent's process %d: %w", pid, err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// pollStep bounds how long an interrupt goes unnoticed, in milliseconds.
const pollStep = 100

// waitEnd returns when the process has ended: its pidfd is readable then
// (pidfd_open(2)).
func waitEnd(ctx context.Context, process *os.File) error {
	for {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("waiting for the agent to end: %w", err)
		}
		p := []unix.PollFd{{Fd: int32(process.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(p, pollStep)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for the agent to end: %w", err)
		}
		if n > 0 {
			return nil
		}
	}
}
