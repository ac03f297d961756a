package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
)

func (a *app) sessionSuspend() *cobra.Command {
	return a.aboutKey(&cobra.Command{
		Use:   "suspend KEY",
		Short: "Save a session's memory, and stop it",
		Long: "Save a session's memory, encrypted on disk, end its container, and release the key.\n" +
			"The next connect restores the session. Its template must say `handover: memory`.\n" +
			"If the memory cannot be saved, nothing happens. If saving fails midway, the session has ended without its memory.",
		Example: "  holdfast session suspend alice\n  holdfast session suspend alice --json",
	}, startLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
		done := a.ui.progress("suspending " + string(key))
		r, err := c.SuspendSession(ctx, key)
		done()
		return errors.Join(show(a.ui, r, err, func(w io.Writer, r holdfast.SuspendReport) {
			fmt.Fprintf(w, "%s is suspended: %.1f MB saved in %s, kept until %s\n", key, float64(r.Bytes)/1e6, r.Took, stamp(r.Until))
		}), leftError(r.Left))
	})
}

func (a *app) sessionResume() *cobra.Command {
	return a.aboutKey(&cobra.Command{
		Use:   "resume KEY",
		Short: "Start a suspended session with its memory",
		Long: "Start a suspended session with its memory, and wait until it is ready. A connect does the same.\n" +
			"If its image cannot be used the session starts fresh, and the answer says why. A running session stays as it is.",
		Example: "  holdfast session resume alice",
	}, startLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
		done := a.ui.progress("resuming " + string(key))
		s, err := c.ResumeSession(ctx, key)
		done()
		return show(a.ui, s, err, func(w io.Writer, s api.Session) {
			fmt.Fprintf(w, "%s is %s at %s (%s, booted in %s)\n", s.Key, s.State, dash(s.Address), memoryText(s.Memory), bootTime(s))
		})
	})
}

// memoryText describes what happened to a session's memory.
func memoryText(memory string) string {
	switch why, lost := strings.CutPrefix(memory, "lost: "); {
	case lost:
		return "fresh: its memory is lost: " + clean(why)
	case memory == holdfast.Restored:
		return "with its memory"
	case memory == holdfast.Saving:
		return "is being saved"
	}
	return "there was no saved memory"
}
