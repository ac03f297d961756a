package cli

import (
	"cmp"
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

// shownEndings is the number of ends that `session show` has.
const shownEndings = 5

// isEnded is the state of a session that does not exist, and whose end is known.
const isEnded holdfast.State = "ended"

// shownSession is the output of `session show`.
type shownSession struct {
	api.Session
	Endings []holdfast.Ending `json:"endings,omitempty"` // the newest first
}

// sessionWithEndings returns a session and how its epochs ended, also of one that has
// ended. A caller that may only read does not get the output of containers.
func (a *app) sessionWithEndings(ctx context.Context, c *client.Client, key holdfast.SessionKey) (shownSession, error) {
	s, err := c.Session(ctx, key)
	if err != nil && !errors.Is(err, holdfast.ErrNotFound) {
		return shownSession{}, err
	}
	rep, problem := a.endingsOf(ctx, c, key, shownEndings)
	switch {
	case err == nil:
		return shownSession{s, rep.Endings}, nil // with the session itself, however little is known about earlier ones
	case problem != nil || len(rep.Endings) == 0:
		return shownSession{}, err
	}
	last := rep.Endings[0]
	gone := holdfast.Owner{Key: key, Node: last.Node, Epoch: last.Epoch, State: isEnded, Template: last.Template, ContainerID: last.ContainerID, ReadyAt: last.ReadyAt}
	return shownSession{api.Session{Owner: gone}, rep.Endings}, nil
}

// endingsOf asks the fleet for the ends of a session, or of all for "". It names the nodes
// that do not answer.
func (a *app) endingsOf(ctx context.Context, c *client.Client, key holdfast.SessionKey, limit int) (rep holdfast.EndingReport, err error) {
	readOnly := &api.Error{}
	if key != "" {
		rep, err = c.SessionEndings(ctx, key, limit)
	}
	if key == "" || errors.As(err, &readOnly) && readOnly.Code == api.CodeReadOnly {
		rep, err = c.Endings(ctx, key, limit)
	}
	for _, n := range rep.NoAnswer {
		a.ui.note("node %s is left out: %s", clean(string(n.Node)), clean(n.Why))
	}
	return rep, err
}

// endedDetails prints a session that has ended.
func (a *app) endedDetails(w io.Writer, s shownSession) {
	fmt.Fprintf(w, "key\t%s\n", s.Key)
	fmt.Fprintf(w, "state\t%s\n", s.State)
	fmt.Fprintf(w, "template\t%s\n", dash(s.Template))
	fmt.Fprintf(w, "node\t%s\n", dash(string(s.Node)))
	fmt.Fprintf(w, "container\t%s\n", dash(s.ContainerID))
	fmt.Fprintf(w, "epoch\t%d\n", s.Epoch)
	if !s.ReadyAt.IsZero() {
		fmt.Fprintf(w, "ready\t%s\n", stamp(s.ReadyAt))
	}
	a.endDetails(w, s.Endings[0])
	a.earlierEnds(w, s.Endings[1:])
}

// endDetails prints all that is known about the end of a session.
func (a *app) endDetails(w io.Writer, e holdfast.Ending) {
	fmt.Fprintf(w, "ended\t%s (%s ago): %s\n", stamp(e.At), age(a.deps.Now(), e.At), clean(e.Text()))
	fmt.Fprintf(w, "ended by\t%s\n", e.By)
	if e.SeenBy != "" {
		fmt.Fprintf(w, "seen by\t%s\n", clean(string(e.SeenBy)))
	}
	if e.ExitCode != nil {
		fmt.Fprintf(w, "exit code\t%s\n", exitText(e))
	}
	if e.Memory != nil {
		fmt.Fprintf(w, "memory\t%s\n", historyText(*e.Memory))
	}
	for i, l := range strings.Split(strings.TrimRight(e.Log, "\r\n"), "\n") {
		if i == 0 && l == "" {
			break
		}
		name := ""
		if i == 0 {
			name = "output"
		}
		fmt.Fprintf(w, "%s\t| %s\n", name, clean(l))
	}
}

// earlierEnds prints a line for each end.
func (a *app) earlierEnds(w io.Writer, all []holdfast.Ending) {
	for _, e := range all {
		fmt.Fprintf(w, "earlier\t%s, epoch %d on %s: %s\n", stamp(e.At), e.Epoch, dash(string(e.Node)), clean(e.Text()))
	}
}

func exitText(e holdfast.Ending) string {
	if e.Signal != "" {
		return fmt.Sprintf("%d (%s)", *e.ExitCode, e.Signal)
	}
	return fmt.Sprint(*e.ExitCode)
}

// samplesShown is the number of samples in the text.
const samplesShown = 6

// historyText returns the memory before the end.
func historyText(m holdfast.MemoryHistory) string {
	var parts []string
	if m.Limit > 0 {
		parts = append(parts, fmt.Sprintf("limit %.1f MB", float64(m.Limit)/1e6))
	}
	if m.Peak > 0 {
		parts = append(parts, fmt.Sprintf("at most %.1f MB", float64(m.Peak)/1e6))
	}
	if some := m.Samples[max(0, len(m.Samples)-samplesShown):]; len(some) > 0 {
		var text []string
		for _, s := range some {
			text = append(text, fmt.Sprintf("%.1f", float64(s.Bytes)/1e6))
		}
		parts = append(parts, fmt.Sprintf("before the end %s MB, within %s", strings.Join(text, ", "), some[len(some)-1].At.Sub(some[0].At).Round(1e8)))
	}
	return cmp.Or(strings.Join(parts, "; "), "-")
}

func (a *app) sessionEndings() *cobra.Command {
	limit := 20
	cmd := &cobra.Command{
		Use:   "endings [KEY]",
		Short: "Show why sessions ended",
		Long: "Show how sessions ended on any node within the last day, the newest first: the reason, the component that ended them and the exit code.\n" +
			"`holdfast session show KEY` shows all details of one.",
		Example: "  holdfast session endings\n  holdfast session endings alice --json",
		Args:    args(0, 1, "at most one session key"), ValidArgsFunction: onlyOne(a.completeKeys),
		PreRunE: func(cmd *cobra.Command, _ []string) error { return atLeast(cmd, "limit", limit, 0) },
		RunE: func(cmd *cobra.Command, words []string) error {
			key, err := keyArg(words)
			if err != nil {
				return err
			}
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				rep, err := a.endingsOf(ctx, c, key, limit)
				return show(a.ui, rep, err, a.endingsTable)
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", limit, "at most that many, the newest; 0: all that are kept")
	return cmd
}

// keyArg returns the optional key of a command, "" if there is none.
func keyArg(words []string) (holdfast.SessionKey, error) {
	if len(words) == 0 {
		return "", nil
	}
	return holdfast.ParseSessionKey(words[0])
}

func (a *app) endingsTable(w io.Writer, rep holdfast.EndingReport) {
	if len(rep.Endings) == 0 {
		fmt.Fprintln(w, "no session has ended within the last day")
		return
	}
	fmt.Fprintln(w, "AGE\tKEY\tREASON\tBY\tEXIT\tEPOCH\tTEMPLATE\tNODE\tTEXT")
	for _, e := range rep.Endings {
		exit := "-"
		if e.ExitCode != nil {
			exit = fmt.Sprint(*e.ExitCode)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", age(a.deps.Now(), e.At), e.Key, e.Reason, e.By, exit, e.Epoch, dash(e.Template), dash(string(e.Node)), clean(e.Text()))
	}
}
