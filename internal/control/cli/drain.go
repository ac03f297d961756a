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
)

func (a *app) drainCmd() *cobra.Command {
	cmd := a.drainFlags(&cobra.Command{
		Use:   "drain",
		Short: "Kill and hand over everything that this node owns, as fast as possible",
		Long: "Kill every container of this node's sessions, wait until they are dead, and release the ownership of their keys.\n" +
			"The node refuses sessions until `holdfast node uncordon`. A drain that has begun continues if this command is interrupted.",
		Example: "  holdfast drain\n  holdfast drain --budget 10s --json\n  holdfast drain --engine-all",
	})
	return cmd
}

func (a *app) nodeDrain() *cobra.Command {
	cmd := a.drainFlags(&cobra.Command{
		Use:   "drain [NODE]",
		Short: "Kill and hand over everything that a node owns, as fast as possible",
		Long: "Kill every container of a node's sessions, wait until they are dead, and release the ownership of their keys.\n" +
			"Without NODE it is the agent's own node, as with `holdfast drain`. The node refuses sessions until `holdfast node uncordon`.\n" +
			"A drain that has begun continues if this command is interrupted.",
		Example: "  holdfast node drain web-1\n  holdfast node drain web-1 --budget 10s --json",
	})
	cmd.Args, cmd.ValidArgsFunction = oneNode(), onlyOne(a.completeNode)
	return cmd
}

func (a *app) drainFlags(cmd *cobra.Command) *cobra.Command {
	var (
		budget        time.Duration
		noPause, full bool
	)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		given := cmd.Flags().Changed("budget")
		if given && budget <= 0 || budget > api.MaxDrainBudget {
			return usage(cmd, fmt.Errorf("--budget is %v, it must be over 0 and at most %v", budget, api.MaxDrainBudget))
		}
		q := api.DrainRequest{Budget: holdfast.Millis(budget), EngineAll: full} // 0 is the agent's
		if noPause {
			q.PauseEngine = new(bool)
		}
		limit := api.MaxDrainBudget
		if given {
			limit = budget
		}
		// The agent ends the drain at the budget; the rest is for an agent that does
		// not answer.
		return a.with(cmd, limit+time.Minute, func(ctx context.Context, c *client.Client) error { return a.drain(ctx, c, nodeArg(words), q) })
	}
	f := cmd.Flags()
	f.DurationVar(&budget, "budget", 0, "longest the drain may take, such as 500ms or 10s (default drain.budget of the agent's configuration)")
	f.BoolVar(&noPause, "no-pause", false, "do not pause the engine while the containers die, which is slower")
	f.BoolVar(&full, "engine-all", false, "include every container of the engine, also those that Holdfast did not start")
	return cmd
}

func (a *app) drain(ctx context.Context, c *client.Client, node holdfast.NodeID, q api.DrainRequest) error {
	a.ui.note("draining…")
	rep, err := c.Drain(ctx, node, q, a.drainStep)
	// Not for a remote agent: this host's engine is another one.
	if errors.Is(err, client.ErrUnreachable) && q.EngineAll && node == "" && a.remoteURL() == "" && ctx.Err() == nil {
		a.ui.note("no agent answers: killing the engine's containers without one")
		rep, err = a.deps.DrainEngine(ctx, q, a.drainStep)
	}
	if err != nil && ctx.Err() != nil {
		return holdfast.WithHint(err, "the drain continues without this command")
	}
	if err != nil && rep.Node == "" {
		return err
	}
	return errors.Join(err, a.drained(rep))
}

// drainStep prints a step when it has ended.
func (a *app) drainStep(s holdfast.Step) {
	if !a.ui.json {
		fmt.Fprintf(a.ui.out, "%-16s %6d  %s\n", clean(s.Name), s.Count, s.Took)
	}
}

// drained prints the report. Its error says what was left behind.
func (a *app) drained(r holdfast.DrainReport) error {
	if err := a.ui.result(r, func(w io.Writer) { drainText(w, r) }); err != nil {
		return err
	}
	if err := leftError(r.Left); err != nil || r.Clean() {
		return err
	}
	return Partial(fmt.Errorf("%s could not be released: %s", count(r.Owned-r.Released, "session"), clean(r.Notice)), "the agent's log has the error of the store")
}

func drainText(w io.Writer, r holdfast.DrainReport) {
	fmt.Fprintf(w, "%s drained in %s: %s seen dead, %s released\n", dash(string(r.Node)), r.Took,
		count(r.Dead, "container"), count(r.Released, "session"))
	if m := r.Memory; m.Saved+len(m.Lost) > 0 {
		fmt.Fprintf(w, "memory: saved of %s of %d, %.1f MB in %s (estimated %s)\n", count(m.Saved, "session"), m.Saved+len(m.Lost), float64(m.Bytes)/1e6, m.Took, m.Estimated)
	}
	if r.Notice != "" {
		fmt.Fprintf(w, "notice: %s\n", clean(r.Notice))
	}
	for _, l := range r.Left {
		fmt.Fprintf(w, "left behind: %s\n", leftLine(l))
	}
}
