package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/api"
	"holdfast/internal/api/client"
)

func (a *app) spinupBegin() *cobra.Command {
	var (
		life time.Duration
		name string
	)
	cmd := &cobra.Command{
		Use:   "begin",
		Short: "Tell the agent that a spin-up of another tool is under way",
		Long: "Tell the agent that another tool pulls, creates or starts something, so that what waits for quiet waits for it, and print an id for `holdfast spinup end`.\n" +
			"It counts until it is ended, or until its time is up: a tool that crashes holds nothing up for ever.",
		Example: "  id=$(holdfast spinup begin --for 5m --name deploy); ./deploy; holdfast spinup end $id",
		Args:    noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if life <= 0 || life > api.MaxUnderWay {
				return usage(cmd, fmt.Errorf("--for is %v, it has to be over 0 and at most %v", life, api.MaxUnderWay))
			}
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				e, err := c.BeginSpinup(ctx, "", name, life)
				if err != nil {
					return err
				}
				return a.ui.result(e, func(w io.Writer) { fmt.Fprintln(w, clean(e.ID)) })
			})
		},
	}
	cmd.Flags().DurationVar(&life, "for", api.DefaultUnderWay, "the longest that it counts if nobody ends it")
	cmd.Flags().StringVar(&name, "name", "", "what it is, for people")
	return cmd
}

func (a *app) spinupEnd() *cobra.Command {
	return &cobra.Command{
		Use:               "end ID",
		Short:             "Tell the agent that a spin-up has ended",
		Long:              "Tell the agent that the spin-up has ended for which `holdfast spinup begin` printed the id.",
		Example:           "  holdfast spinup end 4d3c2b1a00112233",
		Args:              args(1, 1, "the id that `holdfast spinup begin` printed"),
		ValidArgsFunction: a.completeUnderWay,
		RunE: func(cmd *cobra.Command, words []string) error {
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				if err := c.EndSpinup(ctx, words[0]); err != nil {
					return hintNotFound(err, "it may have ended by itself: its time was up")
				}
				return a.ui.result(map[string]string{"ended": words[0]}, func(io.Writer) {})
			})
		},
	}
}

// completeUnderWay completes the id of what is under way, as the only argument.
func (a *app) completeUnderWay(cmd *cobra.Command, words []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(words) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) (out []cobra.Completion, err error) {
		all, err := c.SpinupsUnderWay(ctx)
		for _, e := range all {
			out = append(out, cobra.CompletionWithDesc(e.ID, clean(e.Kind+" "+e.Name)))
		}
		return out, err
	})
}
