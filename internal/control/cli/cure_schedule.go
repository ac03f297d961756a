package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/control/api/client"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/schedule"
)

func (a *app) cureSchedule() *cobra.Command {
	dry := false
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "List the cures that the agent carries out by itself, or show what each would do",
		Long: "List the cures of doctor.cures in the configuration: when the agent ran each, why it does not run now, and why it is stopped.\n" +
			"With --dry-run the command itself determines what each would do now, and changes nothing. It needs no agent then.\n" +
			"`holdfast doctor cure history` lists the runs with their effect.",
		Example: "  holdfast doctor cure schedule\n  holdfast doctor cure schedule --dry-run",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dry {
				return a.planSchedule(cmd)
			}
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				all, err := c.DoctorCures(ctx, 1)
				return show(a.ui, all.Scheduled, err, a.printSchedule)
			})
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "show what each cure would do now")
	return cmd
}

func (a *app) cureAllow() *cobra.Command {
	return &cobra.Command{
		Use:   "allow NAME",
		Short: "Let a scheduled cure run again that the agent has stopped",
		Long: "Let a scheduled cure run again. The agent stops one after which the host was worse, or during which the agent died.\n" +
			"A change of its configuration allows it, too.",
		Example:   "  holdfast doctor cure allow memcg",
		ValidArgs: schedule.Names(),
		Args:      args(1, 1, "the name of a cure"),
		RunE: func(cmd *cobra.Command, words []string) error {
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error { return c.AllowCure(ctx, words[0]) })
		},
	}
}

func (a *app) printSchedule(w io.Writer, all []schedule.State) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no cure is scheduled")
		return
	}
	fmt.Fprintln(w, "CURE\tWHEN\tEVERY\tWINDOW\tLAST RUN\tOUTCOME\tSTATE")
	for _, s := range all {
		last, state := "-", s.Waiting
		if !s.LastRun.IsZero() {
			last = age(a.deps.Now(), s.LastRun) + " ago"
		}
		if s.Stopped != "" {
			state = "stopped: " + s.Stopped
		}
		if s.DryRun {
			state = "dry run; " + state
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", clean(s.Cure), clean(s.When), config.TimeText(time.Duration(s.Every)), dash(clean(s.Window)), last, dash(clean(s.Outcome)), dash(clean(state)))
		printEach(w, "would do", s.WouldDo)
	}
}

// planned is what a scheduled cure would do.
type planned struct {
	Cure  string        `json:"cure"`
	Plans []cure.Report `json:"plans"`
	Error string        `json:"error,omitempty"` // why it would do nothing
}

// planSchedule determines what each scheduled cure would do now.
func (a *app) planSchedule(cmd *cobra.Command) error {
	ctx, cancel := a.limited(cmd, noLimit)
	defer cancel()
	host, err := a.deps.Host(ctx)
	if err != nil {
		return err
	}
	list := []planned{}
	for _, e := range host.Cures {
		done := a.ui.progress("cure " + e.Cure)
		reports, err := a.deps.Cures.Plan(ctx, e)
		done()
		p := planned{Cure: e.Cure, Plans: append([]cure.Report{}, reports...)}
		if err != nil {
			p.Error = err.Error()
		}
		list = append(list, p)
	}
	err = a.ui.result(list, func(w io.Writer) {
		if len(list) == 0 {
			fmt.Fprintln(w, "no cure is scheduled")
		}
		for _, p := range list {
			for _, r := range p.Plans {
				fmt.Fprintf(w, "cure %s, %s\n", clean(p.Cure), clean(r.Target))
				indented(w, "would be done", r.Plan.Does)
				printEach(w, "note", r.Notes)
			}
			if p.Error != "" {
				fmt.Fprintf(w, "cure %s would do nothing: %s\n", clean(p.Cure), clean(p.Error))
			}
		}
	})
	return errors.Join(err, ctx.Err())
}
