package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api/client"
)

func (a *app) sessionSnapshot() *cobra.Command {
	var name string
	var keep time.Duration
	cmd := a.aboutKey(&cobra.Command{
		Use:   "snapshot KEY --name NAME",
		Short: "Copy a session's memory and files under a name",
		Long: "Copy a session's memory and files under a name, encrypted on disk. The session goes on: it pauses for the copy, and keeps its connections.\n" +
			"`holdfast session start --from NAME` starts other sessions from the copy. The template must say `fork: allowed`.",
		Example: "  holdfast session snapshot alice --name v1\n  holdfast session snapshot alice --name v2 --expires 24h",
	}, startLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
		as, err := holdfast.ParseSessionKey(name)
		if err != nil {
			return fmt.Errorf("--name: %w", err)
		}
		done := a.ui.progress("copying " + string(key))
		s, err := c.TakeSnapshot(ctx, key, as, keep)
		done()
		return show(a.ui, s, err, func(w io.Writer, s holdfast.MemorySnapshot) {
			fmt.Fprintf(w, "%s is copied as %s: %.1f MB, a pause of at most %s, kept until %s\n", key, s.Name, float64(s.Bytes)/1e6, s.Pause, stamp(s.Until))
		})
	})
	cmd.Flags().StringVar(&name, "name", "", "name of the snapshot, in the form of a session key")
	cmd.Flags().DurationVar(&keep, "expires", 0, "time after which it is deleted, at least 1m (default moving.suspended.keep)")
	_ = cmd.MarkFlagRequired("name") // the flag exists
	return cmd
}

func (a *app) sessionSnapshots() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "snapshots",
		Short:   "List or remove snapshots of sessions",
		Long:    "List the snapshots of all nodes, by name: the session that each is of, its template, size, age, end and node.",
		Example: "  holdfast session snapshots\n  holdfast session snapshots --json",
		Args:    args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				all, err := c.Snapshots(ctx)
				return show(a.ui, all, err, a.snapshotTable)
			})
		},
	}
	cmd.AddCommand(&cobra.Command{
		Use:     "rm NAME",
		Short:   "Remove a snapshot",
		Long:    "Remove a snapshot. Sessions that have started from it go on.",
		Example: "  holdfast session snapshots rm v1",
		Args:    args(1, 1, "the name of a snapshot"),
		RunE: func(cmd *cobra.Command, words []string) error {
			return a.withKey(cmd, words[0], askLimit, func(ctx context.Context, c *client.Client, name holdfast.SessionKey) error {
				err := c.RemoveSnapshot(ctx, name)
				return show(a.ui, struct {
					Removed holdfast.SessionKey `json:"removed"`
				}{name}, hintNotFound(err, "`holdfast session snapshots` lists them"), func(w io.Writer, _ struct {
					Removed holdfast.SessionKey `json:"removed"`
				}) {
					fmt.Fprintf(w, "snapshot %s is removed\n", name)
				})
			})
		},
	})
	return cmd
}

func (a *app) snapshotTable(w io.Writer, all []holdfast.MemorySnapshot) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no snapshots; `holdfast session snapshot KEY --name NAME` takes one")
		return
	}
	now := a.deps.Now()
	fmt.Fprintln(w, "NAME\tSESSION\tTEMPLATE\tSIZE\tAGE\tEXPIRES\tNODE")
	for _, s := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.1f MB\t%s\t%s\t%s\n", s.Name, s.Key, s.Template, float64(s.Bytes)/1e6, age(now, s.TakenAt), stamp(s.Until), s.Node)
	}
}

func (a *app) sessionFork() *cobra.Command {
	return &cobra.Command{
		Use:   "fork KEY CHILD...",
		Short: "Start other sessions from the memory of a session",
		Long: "Start other sessions from the memory and the files of a session, which goes on: it pauses for the copy, and keeps its connections.\n" +
			"The children begin without connections, each with an epoch and a network of its own. The template must say `fork: allowed`.",
		Example: "  holdfast session fork alice bob carol",
		Args:    args(2, 1+holdfast.MaxForks, fmt.Sprintf("a session key and 1 to %d keys of children", holdfast.MaxForks)), ValidArgsFunction: onlyOne(a.completeKeys),
		RunE: func(cmd *cobra.Command, words []string) error {
			var children []holdfast.SessionKey
			for _, word := range words[1:] {
				key, err := holdfast.ParseSessionKey(word)
				if err != nil {
					return err
				}
				children = append(children, key)
			}
			return a.withKey(cmd, words[0], startLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
				done := a.ui.progress("forking " + string(key))
				r, err := c.ForkSession(ctx, key, children)
				done()
				return errors.Join(show(a.ui, r, err, forkText), failedForks(r))
			})
		},
	}
}

func forkText(w io.Writer, r holdfast.ForkReport) {
	fmt.Fprintf(w, "%s is copied: %.1f MB, a pause of at most %s\n", r.Key, float64(r.Bytes)/1e6, r.Pause)
	for _, c := range r.Children {
		if c.Error != "" {
			fmt.Fprintf(w, "%s failed: %s\n", c.Key, clean(c.Error))
			continue
		}
		fmt.Fprintf(w, "%s is ready on %s after %s\n", c.Key, c.Node, c.Took)
	}
}

func failedForks(r holdfast.ForkReport) error {
	if r.Failed() == 0 {
		return nil
	}
	return &exitError{fmt.Errorf("%s of %d did not start", count(r.Failed(), "session"), len(r.Children)), exitPartial, "the output names the reasons; the others run"}
}
