package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/api"
	"holdfast/internal/api/client"
)

func (a *app) nodeCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:     "node",
		Short:   "See the nodes, take them into rotation, and give them certificates",
		Long:    "See the nodes, which are the hosts with an agent, take them into rotation again, and give them certificates.",
		Example: "  holdfast node ls",
	}, a.nodeLs(), a.nodeUncordon(), a.nodeInitCA(), a.nodeJoin())
}

func (a *app) nodeLs() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List all nodes that are up",
		Long:    "List all nodes that are up, by id: whether they take sessions, how many they have, and their load.",
		Example: "  holdfast node ls\n  holdfast node ls --json",
		Args:    noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				all, err := c.Nodes(ctx)
				if err != nil {
					return err
				}
				return a.ui.result(all, func(w io.Writer) { a.nodeTable(w, all) })
			})
		},
	}
}

func (a *app) nodeTable(w io.Writer, all []holdfast.Node) {
	now := a.deps.Now()
	fmt.Fprintln(w, "NODE\tSTATE\tSESSIONS\tCPU\tMEMORY FREE\tGATEWAY\tUP\tVERSION")
	for _, n := range all {
		state := "ready"
		if n.Draining {
			state = "draining"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%.0f%%\t%s\t%s\t%s\t%s\n", dash(string(n.ID)), state, n.Sessions, 100*n.CPULoad,
			fmt.Sprintf("%.1f of %.1f GiB", gib(n.Memory.Available), gib(n.Memory.Total)), dash(n.Address), age(now, n.Since), dash(n.Version))
	}
}

func gib(bytes int64) float64 { return float64(bytes) / (1 << 30) }

func (a *app) nodeUncordon() *cobra.Command {
	return &cobra.Command{
		Use:     "uncordon",
		Short:   "Take sessions again after a drain",
		Long:    "Make the agent's node take sessions again after a drain.",
		Example: "  holdfast node uncordon",
		Args:    noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				if err := c.Uncordon(ctx); err != nil {
					return err
				}
				return a.ui.result(map[string]bool{"draining": false}, func(w io.Writer) { fmt.Fprintln(w, "the node takes sessions again") })
			})
		},
	}
}

func (a *app) drainCmd() *cobra.Command {
	const defaultBudget = 30 * time.Second
	var (
		budget        time.Duration
		noQuiet, full bool
	)
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Kill and hand over everything this node owns, as fast as can be",
		Long: "Kill every container of this node's sessions, see them dead, and give up the ownership of their keys.\n" +
			"The node takes no sessions until `holdfast node uncordon`. A drain that has begun goes on when this command is interrupted.",
		Example: "  holdfast drain\n  holdfast drain --budget 10s --json\n  holdfast drain --engine-all",
		Args:    noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if budget <= 0 || budget > api.MaxDrainBudget {
				return usage(cmd, fmt.Errorf("--budget is %v, it has to be over 0 and at most %v", budget, api.MaxDrainBudget))
			}
			q := api.DrainRequest{Budget: holdfast.Millis(budget), EngineAll: full}
			if noQuiet {
				q.Quiet = new(bool)
			}
			// The agent ends it at the budget; the rest is for one that hangs.
			return a.with(cmd, budget+time.Minute, func(ctx context.Context, c *client.Client) error { return a.drain(ctx, c, q) })
		},
	}
	f := cmd.Flags()
	f.DurationVar(&budget, "budget", defaultBudget, "longest the drain may take, such as 500ms or 10s")
	f.BoolVar(&noQuiet, "no-quiet", false, "leave the engine running while the containers die, which is slower")
	f.BoolVar(&full, "engine-all", false, "take every container of the engine, also those Holdfast did not start")
	return cmd
}

func (a *app) drain(ctx context.Context, c *client.Client, q api.DrainRequest) error {
	a.ui.note("draining…")
	rep, err := c.Drain(ctx, q, a.drainStep)
	// Not for an agent elsewhere: its host's engine is not the one here.
	if errors.Is(err, client.ErrUnreachable) && q.EngineAll && a.remoteURL() == "" && a.deps.DrainEngine != nil && ctx.Err() == nil {
		a.ui.note("no agent answers: killing the engine's containers without one")
		rep, err = a.deps.DrainEngine(ctx, q, a.drainStep)
	}
	if err != nil && ctx.Err() != nil {
		return holdfast.WithHint(err, "the drain goes on without this command")
	}
	if err != nil && rep.Node == "" {
		return err
	}
	return errors.Join(err, a.drained(rep))
}

// drainStep prints a step as it ends.
func (a *app) drainStep(s holdfast.Step) {
	if !a.ui.json {
		fmt.Fprintf(a.ui.out, "%-16s %6d  %s\n", clean(s.Name), s.Count, s.Took)
	}
}

// drained prints the report; its error says what was left behind.
func (a *app) drained(r holdfast.DrainReport) error {
	if err := a.ui.result(r, func(w io.Writer) { drainText(w, r) }); err != nil {
		return err
	}
	if err := leftError(r.Left); err != nil || r.Clean() {
		return err
	}
	return &partial{
		msg:  count(r.Owned-r.Released, "session") + " could not be given up: " + clean(r.Notice),
		hint: "the agent's log says what is wrong with its store",
	}
}

func drainText(w io.Writer, r holdfast.DrainReport) {
	fmt.Fprintf(w, "%s drained in %s: %s seen dead, %s released\n", dash(string(r.Node)), r.Took,
		count(r.Dead, "container"), count(r.Released, "session"))
	if r.Notice != "" {
		fmt.Fprintf(w, "notice: %s\n", clean(r.Notice))
	}
	for _, l := range r.Left {
		fmt.Fprintf(w, "left behind: %s\n", leftLine(l))
	}
}
