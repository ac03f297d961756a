package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/spinup/underway"
	"holdfast/internal/platform/linux/boottime"
)

// announced are the announcements on this host, which every collector reads. They
// implement api.UnderWay.
type announced struct{ *underway.Leases }

// Active lists none: only a collector lists announcements.
func (announced) Active() []underway.Entry { return nil }

// announced opens this host's announcements.
func (h Host) announced() (announced, error) {
	if h.RunDir == "" {
		return announced{}, errors.New("there is no run directory on this host")
	}
	leases, err := underway.OpenLeases(filepath.Join(h.RunDir, underway.DirName), boottime.Now)
	return announced{leases}, err
}

// withUnderWay calls do with the agent, or with this host's announcements if no agent
// answers.
func (a *app) withUnderWay(cmd *cobra.Command, do func(context.Context, *client.Client) error) error {
	ctx, cancel := a.limited(cmd, askLimit)
	defer cancel()
	return a.agentOrHost(ctx, func(h Host, unreachable error) (hostParts, error) {
		here, err := h.announced()
		if err == nil {
			err = here.Make()
		}
		if err != nil {
			return hostParts{}, errors.Join(unreachable, err)
		}
		return hostParts{Parts: api.Parts{UnderWay: here}}, nil
	}, func(c *client.Client) error { return do(ctx, c) })
}

func (a *app) spinupBegin() *cobra.Command {
	var (
		life time.Duration
		name string
	)
	cmd := &cobra.Command{
		Use:   "begin",
		Short: "Announce a spin-up of another program",
		Long: "Announce that another program pulls, creates or starts a container on this host, so that garbage collection waits for it, and print an id for `holdfast spinup end`.\n" +
			"The announcement counts until it is ended, or until its time is up, in case the program crashes. It goes to the agent. If no agent answers it is a file on this host for every collector, which needs root.",
		Example: "  id=$(holdfast spinup begin --for 5m --name deploy); ./deploy; holdfast spinup end $id",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if life <= 0 || life > api.MaxUnderWay {
				return usage(cmd, fmt.Errorf("--for is %v, it must be over 0 and at most %v", life, api.MaxUnderWay))
			}
			return a.withUnderWay(cmd, func(ctx context.Context, to *client.Client) error {
				e, err := to.BeginSpinup(ctx, "", name, life)
				return show(a.ui, e, err, func(w io.Writer, e underway.Entry) { fmt.Fprintln(w, clean(e.ID)) })
			})
		},
	}
	cmd.Flags().DurationVar(&life, "for", api.DefaultUnderWay, "how long it counts if it is not ended")
	cmd.Flags().StringVar(&name, "name", "", "a name for the operator")
	return cmd
}

func (a *app) spinupEnd() *cobra.Command {
	return &cobra.Command{
		Use:               "end ID",
		Short:             "End an announced spin-up",
		Long:              "End the spin-up with the id that `holdfast spinup begin` printed.",
		Example:           "  holdfast spinup end 4d3c2b1a00112233",
		Args:              args(1, 1, "the id that `holdfast spinup begin` printed"),
		ValidArgsFunction: onlyOne(a.completeUnderWay),
		RunE: func(cmd *cobra.Command, words []string) error {
			return a.withUnderWay(cmd, func(ctx context.Context, to *client.Client) error {
				if err := to.EndSpinup(ctx, words[0]); err != nil {
					return hintNotFound(err, "its time may have been up")
				}
				return a.ui.result(map[string]string{"ended": words[0]}, func(io.Writer) {})
			})
		},
	}
}

// completeUnderWay completes the id of an announced spin-up.
func (a *app) completeUnderWay(cmd *cobra.Command, words []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) (out []cobra.Completion, err error) {
		all, err := c.SpinupsUnderWay(ctx)
		for _, e := range all {
			out = append(out, cobra.CompletionWithDesc(e.ID, clean(e.Kind+" "+e.Name)))
		}
		return out, err
	})
}
