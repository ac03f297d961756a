package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/linux/pidfd"
)

func (a *app) agentCmd() *cobra.Command {
	var (
		upgrade bool
		trial   time.Duration
	)
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of this host",
		Long: "Run the agent of this host in the foreground.\n" +
			"SIGTERM and Ctrl-C drain the node first. SIGUSR2 ends the agent and leaves its containers to the next agent.\n" +
			"With --upgrade the program on disk replaces the running agent that was started from it. No connect is refused meanwhile,\n" +
			"and sessions stay. If the new agent cannot serve, the old one continues.",
		Example: "  holdfast agent\n  holdfast agent --upgrade\n  holdfast agent stop --keep",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if upgrade {
				return a.upgradeAgent(cmd, trial)
			}
			if cmd.Flags().Changed("trial") {
				return usage(cmd, errors.New("--trial goes with --upgrade"))
			}
			return a.deps.RunAgent(cmd.Context(), AgentRun{
				Flags: cmd.Flags(), Socket: a.givenSocket(), Stdout: a.ui.out, Stderr: a.ui.err,
				Step:    a.drainStep,
				Drained: func(r holdfast.DrainReport) { _ = a.drained(r) }, // the agent ends in any case
			})
		},
	}
	cmd.Flags().BoolVar(&upgrade, "upgrade", false, "replace the running agent by the program on disk")
	cmd.Flags().DurationVar(&trial, "trial", api.DefaultTrial, "with --upgrade: how long the old agent stands by after the new one serves")
	a.deps.AgentFlags(cmd.Flags())
	return group(cmd, a.agentStop())
}

func (a *app) agentStop() *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use:     "stop",
		Short:   "End the agent, and wait until it has ended",
		Long:    "Make the agent drain its node and end. With --keep it ends and leaves its containers to the next agent. Wait until it has ended.",
		Example: "  holdfast agent stop\n  holdfast agent stop --keep",
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
	// Opened before the agent ends, while the pid is certainly the agent's. It stays nil if
	// the agent's pid is in another pid namespace.
	var process *pidfd.Process
	if a.remoteURL() == "" && v.PID > 0 {
		if process, err = pidfd.Open(v.PID); err != nil && !errors.Is(err, pidfd.ErrGone) {
			return fmt.Errorf("watching the agent: %w", err)
		}
	}
	if err := c.StopAgent(ctx, keep); err != nil {
		return err
	}
	said := "the agent is ending"
	if process != nil {
		defer process.Close()
		done := a.ui.progress("waiting for the agent to end")
		err := waitExit(ctx, process)
		done()
		if err != nil {
			return err
		}
		said = "the agent has ended"
	}
	if keep {
		said += " and left its containers to the next agent"
	}
	return a.ui.result(map[string]bool{"ended": process != nil, "keep": keep}, func(w io.Writer) { fmt.Fprintln(w, said) })
}

// pollStep is the interval of checking whether the agent has exited.
const pollStep = 10 * time.Millisecond

// waitExit returns when the process has exited.
func waitExit(ctx context.Context, process *pidfd.Process) error {
	tick := time.NewTicker(pollStep)
	defer tick.Stop()
	for !process.Exited() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the agent to end: %w", context.Cause(ctx))
		}
	}
	return nil
}
