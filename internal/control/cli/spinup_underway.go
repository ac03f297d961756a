package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/underway"
	"holdfast/internal/platform/linux/boottime"
)

// underWay takes announcements of other programs' spin-ups.
type underWay interface {
	BeginSpinup(ctx context.Context, kind spinup.Kind, name string, life time.Duration) (underway.Entry, error)
	EndSpinup(ctx context.Context, id string) error
}

var (
	_ underWay = (*client.Client)(nil)
	_ underWay = noted{}
)

// noted are the announcements on this host.
type noted struct{ leases *underway.Leases }

// BeginSpinup announces a spin-up; "" is the kind of another program's.
func (n noted) BeginSpinup(_ context.Context, kind spinup.Kind, name string, life time.Duration) (underway.Entry, error) {
	return n.leases.Begin(cmp.Or(string(kind), underway.Outside), name, life)
}

func (n noted) EndSpinup(_ context.Context, id string) error { return n.leases.End(id) }

// underWayHere returns this host's announcements, which every collector reads.
func (h Host) underWayHere() (noted, error) {
	if h.RunDir == "" {
		return noted{}, errors.New("there is no run directory on this host")
	}
	leases, err := underway.OpenLeases(filepath.Join(h.RunDir, underway.DirName), boottime.Now)
	return noted{leases}, err
}

// withUnderWay calls do with the agent, or with this host's announcements if no agent
// answers.
func (a *app) withUnderWay(cmd *cobra.Command, do func(context.Context, underWay) error) error {
	ctx, cancel := a.limited(cmd, askLimit)
	defer cancel()
	return a.agentOrHost(ctx, func(c *client.Client) error { return do(ctx, c) }, func(h Host, unreachable error) error {
		here, err := h.underWayHere()
		if err == nil {
			err = here.leases.Make()
		}
		if err != nil {
			return errors.Join(unreachable, err)
		}
		return do(ctx, here)
	})
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
		Args:    noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if life <= 0 || life > api.MaxUnderWay {
				return usage(cmd, fmt.Errorf("--for is %v, it must be over 0 and at most %v", life, api.MaxUnderWay))
			}
			return a.withUnderWay(cmd, func(ctx context.Context, to underWay) error {
				e, err := to.BeginSpinup(ctx, "", name, life)
				if err != nil {
					return err
				}
				return a.ui.result(e, func(w io.Writer) { fmt.Fprintln(w, clean(e.ID)) })
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
		ValidArgsFunction: a.completeUnderWay,
		RunE: func(cmd *cobra.Command, words []string) error {
			return a.withUnderWay(cmd, func(ctx context.Context, to underWay) error {
				if err := to.EndSpinup(ctx, words[0]); err != nil {
					return hintNotFound(err, "its time may have been up")
				}
				return a.ui.result(map[string]string{"ended": words[0]}, func(io.Writer) {})
			})
		},
	}
}

// completeUnderWay completes the id of an announced spin-up, as the only argument.
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
