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

func (a *app) sessionCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:     "session",
		Short:   "List, start, stop, move and replace sessions",
		Long:    "List, start, stop, move and replace sessions. A session is a key with the one container that serves it.",
		Example: "  holdfast session ls",
	}, a.sessionLs(), a.sessionShow(), a.sessionEndings(), a.sessionEvents(), a.sessionStart(), a.sessionStop(), a.sessionMove(), a.sessionSuspend(), a.sessionResume(), a.sessionWake(), a.sessionSnapshot(), a.sessionSnapshots(), a.sessionFork(), a.sessionLogs(), a.sessionExec(),
		a.sessionCommands(), a.sessionAttach(), a.sessionSignal(), a.sessionCp(), a.sessionFiles(), a.sessionForward(),
		a.sessionReplace(), a.sessionReplacements())
}

func (a *app) sessionLs() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List all sessions",
		Long:    "List all sessions, by key: their state, template, age, open connections, address, container and node.",
		Example: "  holdfast session ls\n  holdfast session ls --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				all, err := c.Sessions(ctx)
				return show(a.ui, all, err, a.sessionTable)
			})
		},
	}
}

func (a *app) sessionTable(w io.Writer, all []api.Session) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no sessions; `holdfast session start KEY` starts one")
		return
	}
	now := a.deps.Now()
	fmt.Fprintln(w, "KEY\tSTATE\tTEMPLATE\tAGE\tCONNECTIONS\tADDRESS\tCONTAINER\tNODE")
	for _, s := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", s.Key, stateText(s), dash(s.Template), age(now, s.ClaimedAt),
			s.Connections, dash(s.Address), shortID(s.ContainerID), dash(string(s.Node)))
	}
}

// stateText returns the state of a session, whether it sleeps, and the state of a replica
// that gets no requests.
func stateText(s api.Session) string {
	if s.Sleep.Asleep() {
		return fmt.Sprintf("%s (asleep)", s.State)
	}
	if s.Rotation == "" || s.Rotation == holdfast.ReplicaServing {
		return string(s.State)
	}
	return fmt.Sprintf("%s (%s)", s.State, s.Rotation)
}

func (a *app) sessionShow() *cobra.Command {
	return a.aboutKey(&cobra.Command{
		Use:     "show KEY",
		Short:   "Show one session in detail, and why it ended",
		Long:    "Show all details of one session, and how its epochs ended within the last day: the reason, the exit code, the memory, and the last\noutput of a boot that failed.",
		Example: "  holdfast session show alice",
	}, askLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
		s, err := a.sessionWithEndings(ctx, c, key)
		return show(a.ui, s, err, a.sessionDetails)
	})
}

func (a *app) sessionDetails(w io.Writer, s shownSession) {
	if s.State == isEnded {
		a.endedDetails(w, s)
		return
	}
	fmt.Fprintf(w, "key\t%s\n", s.Key)
	fmt.Fprintf(w, "state\t%s\n", s.State)
	fmt.Fprintf(w, "template\t%s\n", dash(s.Template))
	if s.Group != "" {
		fmt.Fprintf(w, "group\t%s (%s)\n", s.Group, s.Rotation)
	}
	fmt.Fprintf(w, "node\t%s\n", dash(string(s.Node)))
	fmt.Fprintf(w, "address\t%s\n", dash(s.Address))
	fmt.Fprintf(w, "container\t%s\n", dash(s.ContainerID))
	fmt.Fprintf(w, "epoch\t%d\n", s.Epoch)
	fmt.Fprintf(w, "claimed\t%s (%s ago)\n", stamp(s.ClaimedAt), age(a.deps.Now(), s.ClaimedAt))
	if !s.ReadyAt.IsZero() {
		fmt.Fprintf(w, "ready\t%s (after %s)\n", stamp(s.ReadyAt), bootTime(s.Session))
	}
	if s.Memory != "" {
		fmt.Fprintf(w, "memory\t%s\n", memoryText(s.Memory))
	}
	if s.Parent != "" {
		fmt.Fprintf(w, "parent\t%s (%s)\n", s.Parent, s.Snapshot)
	}
	if k := s.Suspended; k != nil {
		fmt.Fprintf(w, "suspended\t%s, %.1f MB, kept until %s\n", stamp(k.TakenAt), float64(k.Bytes)/1e6, stamp(k.Until))
	}
	if s.Boot.Total() > 0 {
		fmt.Fprintf(w, "boot\t%s\n", bootText(s.Boot))
	}
	fmt.Fprintf(w, "connections\t%d\n", s.Connections)
	if !s.IdleSince.IsZero() {
		fmt.Fprintf(w, "idle since\t%s (%s ago)\n", stamp(s.IdleSince), age(a.deps.Now(), s.IdleSince))
	}
	if s.Sleep != nil {
		fmt.Fprintf(w, "sleep\t%s\n", a.sleepText(*s.Sleep))
	}
	if text := wakeText(s.Session); text != "" {
		fmt.Fprintf(w, "timer\t%s\n", strings.TrimPrefix(text, ", "))
	}
	if s.LastError != "" {
		fmt.Fprintf(w, "last error\t%s\n", clean(s.LastError))
	}
	if s.LastError != "" && len(s.Endings) > 0 { // it has just failed
		a.endDetails(w, s.Endings[0])
		s.Endings = s.Endings[1:]
	}
	a.earlierEnds(w, s.Endings)
}

// sleepText tells since when a session sleeps, or what woke it last.
func (a *app) sleepText(s holdfast.Sleep) string {
	var parts []string
	if s.Asleep() {
		parts = append(parts, fmt.Sprintf("since %s (%s)", stamp(s.Since), age(a.deps.Now(), s.Since)))
		if s.Memory > 0 {
			parts = append(parts, fmt.Sprintf("%.1f MB in memory", float64(s.Memory)/1e6))
		}
	} else {
		parts = append(parts, "awake")
	}
	if s.WokenBy != "" {
		parts = append(parts, fmt.Sprintf("last woken %s by %s", stamp(s.WokenAt), s.WokenBy))
	}
	return strings.Join(append(parts, count(s.Sleeps, "sleep")), ", ")
}

// bootText lists the phases of a boot, in their order.
func bootText(p holdfast.Phases) string {
	var parts []string
	for _, x := range []struct {
		name string
		took holdfast.Millis
	}{{"queue", p.Queue}, {"claim", p.Claim}, {"pull", p.Pull}, {"disk", p.Disk}, {"init", p.Init}, {"create", p.Create}, {"start", p.Start}, {"ready", p.Ready}} {
		if x.took > 0 {
			parts = append(parts, x.name+" "+x.took.String())
		}
	}
	return strings.Join(parts, ", ")
}

func bootTime(s api.Session) holdfast.Millis { return holdfast.Millis(s.ReadyAt.Sub(s.ClaimedAt)) }

func (a *app) sessionStart() *cobra.Command {
	var template, from string
	cmd := a.aboutKey(&cobra.Command{
		Use:   "start KEY",
		Short: "Start a session and wait until it is ready",
		Long: "Start the container of a session and wait until it is ready. A session that is already ready stays as it is.\n" +
			"With --from it starts with the memory and the files of a snapshot, and must not exist yet.",
		Example: "  holdfast session start alice\n  holdfast session start alice --template web\n  holdfast session start carol --from v1",
	}, startLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
		done := a.ui.progress("starting " + string(key))
		s, err := startSession(ctx, c, key, template, from)
		done()
		return show(a.ui, s, err, func(w io.Writer, s api.Session) {
			fmt.Fprintf(w, "%s is %s at %s (template %s, container %s, booted in %s)\n",
				s.Key, s.State, dash(s.Address), dash(s.Template), shortID(s.ContainerID), bootTime(s))
		})
	})
	cmd.Flags().StringVar(&template, "template", "", "template to start it from (default the agent's own)")
	cmd.Flags().StringVar(&from, "from", "", "snapshot to start it from")
	cmd.MarkFlagsMutuallyExclusive("template", "from")
	return cmd
}

func startSession(ctx context.Context, c *client.Client, key holdfast.SessionKey, template, from string) (api.Session, error) {
	if from == "" {
		return c.StartSession(ctx, key, template)
	}
	name, err := holdfast.ParseSessionKey(from)
	if err != nil {
		return api.Session{}, err
	}
	return c.StartSessionFrom(ctx, key, name)
}

func (a *app) sessionStop() *cobra.Command {
	return a.aboutKey(&cobra.Command{
		Use:     "stop KEY",
		Short:   "Kill a session's container and release the key",
		Long:    "Kill a session's container, wait until it is dead, and release the ownership of the key.",
		Example: "  holdfast session stop alice",
	}, stopLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
		done := a.ui.progress("stopping " + string(key))
		r, err := c.StopSession(ctx, key)
		done()
		return errors.Join(show(a.ui, r, err, func(w io.Writer, r holdfast.KillReport) {
			if len(r.Left) == 0 {
				fmt.Fprintf(w, "%s is stopped: %s seen dead in %s\n", key, count(len(r.Dead), "container"), r.Took)
			}
			if r.Notice != "" {
				fmt.Fprintf(w, "notice: %s\n", clean(r.Notice))
			}
		}), leftError(r.Left))
	})
}

func (a *app) sessionLogs() *cobra.Command {
	var o api.LogOptions
	cmd := a.aboutKey(&cobra.Command{
		Use:     "logs KEY",
		Short:   "Print the output of a session's container",
		Long:    "Print the output of a session's container, stdout and stderr together.",
		Example: "  holdfast session logs alice --tail 20\n  holdfast session logs alice -f",
	}, noLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
		return c.Logs(ctx, key, o, a.ui.out)
	})
	f := cmd.Flags()
	f.BoolVarP(&o.Follow, "follow", "f", false, "continue with new output")
	f.IntVar(&o.Tail, "tail", -1, "last lines to begin with; below 0 is all")
	f.BoolVar(&o.Timestamps, "timestamps", false, "begin each line with its time")
	return cmd
}
