package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

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

func (a *app) sessionWake() *cobra.Command {
	var at string
	var q api.WakeRequest
	var cmd *cobra.Command
	cmd = a.aboutKey(&cobra.Command{
		Use:   "wake KEY [--at TIME | --in DURATION | --clear]",
		Short: "Wake a session that sleeps or is suspended, now or at a time",
		Long: "Wake a session that sleeps or is suspended, now or at a time. A session has one time, which the next command replaces.\n" +
			"It survives the agent's restart, and ends with the session. The times of the template (`sleep.wake`) are independent of it.",
		Example: "  holdfast session wake alice\n  holdfast session wake alice --in 10m\n  holdfast session wake alice --at 2026-12-24T18:00:00Z\n  holdfast session wake alice --clear",
	}, startLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
		var err error
		if cmd.Flags().Changed("at") {
			if q.At, err = time.Parse(time.RFC3339, at); err != nil {
				return &exitError{fmt.Errorf("--at: %q is not a time", at), exitUsage, "write it as 2026-12-24T18:00:00Z"}
			}
		}
		s, err := c.WakeSession(ctx, key, q)
		return show(a.ui, s, err, func(w io.Writer, s api.Session) { fmt.Fprintf(w, "%s is %s%s\n", s.Key, stateText(s), wakeText(s)) })
	})
	f := cmd.Flags()
	f.StringVar(&at, "at", "", "wake it at this time, as in 2026-12-24T18:00:00Z, at most a year ahead")
	f.DurationVar((*time.Duration)(&q.In), "in", 0, "wake it after this time")
	f.BoolVar(&q.Clear, "clear", false, "do not wake it at the time that was set")
	return cmd
}

// wakeText tells when a session wakes by itself; "" is never.
func wakeText(s api.Session) (text string) {
	for _, x := range []struct {
		at time.Time
		by string
	}{{s.WakeAt, "by a command"}, {s.WakeCron, "by its template"}} {
		if !x.at.IsZero() {
			text += fmt.Sprintf(", wakes %s %s", stamp(x.at), x.by)
		}
	}
	return text
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
