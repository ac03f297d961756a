package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/spinup"
)

func (a *app) spinupCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:   "spinup",
		Short: "Show the times of spin-ups, slow phases, and how often they occur",
		Long: "Show the spin-ups on this host: boots of sessions, `holdfast pull` and `run`, and containers of other programs on the same engine.\n" +
			"The records are the agent's. If no agent answers they are read from its data directory.",
		Example: "  holdfast spinup ls --slow\n  holdfast spinup stats --since 24h --by driver",
	}, a.spinupLs(), a.spinupShow(), a.spinupStats(), a.spinupBegin(), a.spinupEnd())
}

// spinupFilter are the flags that select records.
type spinupFilter struct {
	since, until, kind, image, job, experiment string
	slow, failed                               bool
}

func (f *spinupFilter) flags(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVar(&f.since, "since", "", "only those that began at that time or later: a time ago (24h, 7d), a date or a time")
	s.StringVar(&f.until, "until", "", "only those that began before that time: in the same form")
	s.StringVar(&f.kind, "kind", "", "only of this kind: "+strings.Join(kinds(), ", "))
	s.StringVar(&f.image, "image", "", "only of this image; without a tag: of any tag")
	s.StringVar(&f.job, "job", "", "only of this session or run")
	s.StringVar(&f.experiment, "experiment", "", "only those with an arm of this experiment")
	s.BoolVar(&f.slow, "slow", false, "only those with a slow phase")
	s.BoolVar(&f.failed, "failed", false, "only those that failed")
	completeWords(cmd, "kind", kinds()...)
}

func kinds() []string { return texts(spinup.Kinds()) }

// filter reads the flags.
func (f *spinupFilter) filter(cmd *cobra.Command, now time.Time) (spinup.Filter, error) {
	out := spinup.Filter{Kind: spinup.Kind(f.kind), Image: f.image, Job: f.job, Experiment: f.experiment}
	if f.kind != "" && !slices.Contains(spinup.Kinds(), out.Kind) {
		return out, usage(cmd, fmt.Errorf("--kind is %q, it must be one of %s", f.kind, strings.Join(kinds(), ", ")))
	}
	for _, at := range []struct {
		flag, text string
		to         *time.Time
	}{{"since", f.since, &out.Since}, {"until", f.until, &out.Until}} {
		if at.text == "" {
			continue
		}
		var err error
		if *at.to, err = parseMoment(now, at.text); err != nil {
			return out, usage(cmd, fmt.Errorf("--%s: %w", at.flag, err))
		}
	}
	if f.failed {
		out.Outcome = spinup.Failed
	}
	if f.slow {
		out.Slow = &spinup.Rules{} // the reader of the records has the rules
	}
	return out, nil
}

func (a *app) spinupLs() *cobra.Command {
	var (
		f     spinupFilter
		limit int
		dir   string
	)
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List spin-ups, the newest first",
		Long: "List spin-ups, the newest first: the time of each phase, and the result.\n" +
			"A phase that was slow by the agent's rules is marked with \"!\".",
		Example: "  holdfast spinup ls --since 24h --slow\n  holdfast spinup ls --failed --kind session\n  holdfast spinup ls --image nginx --limit 5 --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := f.filter(cmd, a.deps.Now())
			if err != nil {
				return err
			}
			if limit < 1 || limit > api.MaxSpinups {
				return usage(cmd, fmt.Errorf("--limit is %d, it must be between 1 and %d", limit, api.MaxSpinups))
			}
			filter.Limit = limit
			return a.withSpinups(cmd, askLimit, dir, func(ctx context.Context, s *client.Client) error {
				all, err := s.Spinups(ctx, filter)
				return show(a.ui, all, err, a.spinupTable)
			})
		},
	}
	f.flags(cmd)
	cmd.Flags().IntVar(&limit, "limit", 20, "at most that many")
	dataDirFlag(cmd, &dir)
	return cmd
}

func (a *app) spinupTable(w io.Writer, all []api.JudgedSpinup) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no recorded spin-up matches")
		return
	}
	now := a.deps.Now()
	fmt.Fprintln(w, "ID\tAGE\tKIND\tIMAGE\tDOWNLOAD\tEXTRACT\tCREATE\tSTART\tREADY\tTOTAL\tRESULT")
	for _, s := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s", dash(s.ID[:min(len(s.ID), 12)]), age(now, s.Begun), dash(string(s.Kind)), dash(tail(s.Image, 40)))
		for _, p := range spinup.Phases() {
			fmt.Fprint(w, "\t"+phaseCell(s, p))
		}
		fmt.Fprintf(w, "\t%v\t%s\n", s.Took, resultText(s.Record))
	}
}

// tail returns the end of a text that is too long for a table: the end of an image's
// name identifies it.
func tail(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return "…" + string(r[len(r)-most+1:])
	}
	return s
}

// phaseCell formats the time of a phase, or why there is none.
func phaseCell(s api.JudgedSpinup, p spinup.Phase) string {
	took, ok := s.Times[p]
	var cell string
	switch {
	case p == spinup.Download && s.Pull != nil && s.Pull.Cached:
		return "cached"
	case !ok:
		return "-"
	case p == spinup.Download && s.Pull != nil && s.Pull.Joined:
		return "joined " + took.String()
	default:
		cell = took.String()
	}
	if slices.Contains(s.Slow, p) {
		cell += "!"
	}
	return cell
}

func resultText(r spinup.Record) string {
	if r.Outcome == spinup.OK {
		return string(r.Outcome)
	}
	words := []string{string(r.Outcome)}
	if r.Failed != "" {
		words = append(words, "in", string(r.Failed))
	}
	if r.Cause != spinup.NoCause && r.Cause != spinup.Other && r.Outcome == spinup.Failed {
		words = append(words, "("+string(r.Cause)+")")
	}
	return clean(strings.Join(words, " "))
}

func (a *app) spinupShow() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:               "show ID",
		Short:             "Show one spin-up in detail",
		Long:              "Show all details of one spin-up: its phases, every layer of its pull, and its error.\nA unique beginning of the id is enough.",
		Example:           "  holdfast spinup show 188a2f3c71b0",
		Args:              args(1, 1, "the id of one spin-up"),
		ValidArgsFunction: onlyOne(a.completeSpinup),
		RunE: func(cmd *cobra.Command, words []string) error {
			return a.withSpinups(cmd, askLimit, dir, func(ctx context.Context, s *client.Client) error {
				one, err := s.Spinup(ctx, words[0])
				return show(a.ui, one, hintNotFound(err, "`holdfast spinup ls` lists the spin-ups"), spinupDetails)
			})
		},
	}
	dataDirFlag(cmd, &dir)
	return cmd
}

func spinupDetails(w io.Writer, s api.JudgedSpinup) {
	for _, l := range []struct{ name, value string }{
		{"id", s.ID}, {"kind", string(s.Kind)}, {"job", s.Job}, {"image", s.Image}, {"digest", s.Digest},
		{"container", s.Container}, {"name", s.Name}, {"begun", stamp(s.Begun)}, {"total", s.Took.String()}, {"result", resultText(s.Record)},
		{"error", s.Error}, {"hint", s.Cause.Hint()}, {"host", s.Cohort.Host},
		{"engine", strings.Join(slices.DeleteFunc([]string{s.Cohort.Engine, s.Cohort.Driver, s.Cohort.ImageStore}, func(s string) bool { return s == "" }), ", ")},
		{"kernel", s.Cohort.Kernel}, {"unpigz", yesNo(s.Cohort.Unpigz)},
	} {
		if l.value != "" {
			fmt.Fprintf(w, "%s\t%s\n", l.name, clean(l.value))
		}
	}
	if !s.Pulled.IsZero() {
		fmt.Fprintf(w, "pulled\t%v before, by another program; the engine does not report the time of that pull\n", holdfast.Millis(s.Begun.Sub(s.Pulled)))
	}
	if s.Pull != nil {
		fmt.Fprintf(w, "pull\t%s\n", clean(strings.TrimPrefix(s.Pull.Line(), "pull stats: ")))
	}
	if len(s.Times) > 0 {
		fmt.Fprintln(w, "\nPHASE\tTIME\tSLOW")
		for _, p := range spinup.Phases() {
			if took, ok := s.Times[p]; ok {
				fmt.Fprintf(w, "%s\t%v\t%s\n", p, took, yesNo(slices.Contains(s.Slow, p)))
			}
		}
	}
	if s.Pull != nil && len(s.Pull.Layers) > 0 {
		layerTable(w, *s.Pull)
	}
}

func layerTable(w io.Writer, p spinup.Pull) {
	fmt.Fprintln(w, "\nLAYER\tSTATE\tSIZE\tQUEUED\tDOWNLOAD\tRETRIES\tWAITED\tEXTRACT\tNOTE")
	for _, l := range p.Layers {
		var notes []string
		for note, is := range map[string]bool{"joined": l.Joined, "bytes unknown": l.Unknown, "extraction inferred": l.Inferred} {
			if is {
				notes = append(notes, note)
			}
		}
		slices.Sort(notes)
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", dash(l.ID), dash(string(l.State)), sizeText(l.Size), phaseText(l.Queued),
			phaseText(l.DownloadTime), l.Retries, phaseText(l.Waited), phaseText(l.Extract.To-l.Extract.From), dash(strings.Join(notes, ", ")))
	}
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// completeSpinup completes the id of a recent spin-up.
func (a *app) completeSpinup(cmd *cobra.Command, words []string, _ string) (out []cobra.Completion, d cobra.ShellCompDirective) {
	dir, _ := cmd.Flags().GetString("data-dir") // completeSpinup is for commands with that flag
	err := a.withSpinups(cmd, completeLimit, dir, func(ctx context.Context, s *client.Client) error {
		all, err := s.Spinups(ctx, spinup.Filter{Limit: 50})
		for _, one := range all {
			out = append(out, cobra.CompletionWithDesc(one.ID, cmp.Or(clean(one.Image), "-")+" "+resultText(one.Record)))
		}
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
