package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/spinup/prefetch"
)

// pullPrefetch is `holdfast pull --prefetch`: without images it lists the images that
// the agent keeps.
func (a *app) pullPrefetch(cmd *cobra.Command, images []string, o pullOptions) error {
	switch {
	case o.platform != "":
		return usage(cmd, errors.New("--prefetch keeps images for this host: it does not go with --platform"))
	case o.remove && len(images) == 0:
		return usage(cmd, errors.New("--remove needs one image or more"))
	case len(images) > 0 && !o.remove:
		// An unreachable agent is reported before the pull.
		if err := a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
			_, err := c.PrefetchImages(ctx)
			return err
		}); err != nil {
			return err
		}
		ctx, cancel := a.limited(cmd, noLimit)
		defer cancel()
		if err := a.pull(ctx, images, o); err != nil {
			return err
		}
	}
	return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
		var kept []prefetch.Entry
		var err error
		switch {
		case o.remove:
			kept, err = c.RemovePrefetchImages(ctx, images)
		case len(images) > 0:
			kept, err = c.AddPrefetchImages(ctx, images)
		default:
			kept, err = c.PrefetchImages(ctx)
		}
		if err == nil && len(images) > 0 {
			a.ui.note("%s kept on this host", count(len(kept), "image"))
			return nil
		}
		return show(a.ui, kept, err, a.prefetchText)
	})
}

// completePrefetch completes one more image of the agent's list.
func (a *app) completePrefetch(cmd *cobra.Command, words []string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) (out []cobra.Completion, err error) {
		all, err := c.PrefetchImages(ctx)
		for _, i := range all {
			if !i.Fixed && !slices.Contains(words, i.Image) {
				out = append(out, cobra.CompletionWithDesc(i.Image, string(i.State)))
			}
		}
		return out, err
	})
}

func (a *app) prefetchText(w io.Writer, kept []prefetch.Entry) {
	fmt.Fprintln(w, "IMAGE\tFROM\tSTATE\tNEXT TRY\tERROR")
	for _, i := range kept {
		from, again := "command", ""
		if i.Fixed {
			from = "configuration"
		}
		if !i.Again.IsZero() {
			again = "in " + max(i.Again.Sub(a.deps.Now()), 0).Round(time.Second).String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", dash(i.Image), from, dash(string(i.State)), dash(again), dash(i.Error))
	}
}
