package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/hosts/doctor/profile"
)

// recordResult is the output of `holdfast doctor record --json`.
type recordResult struct {
	File string `json:"file"`
	profile.Summary
}

func (a *app) recordCmd() *cobra.Command {
	r := profile.Recorder{For: 30 * time.Second, Hz: profile.DefaultHz}
	var file string
	top := defaultTop
	wait, within := false, 10*time.Minute
	cmd := &cobra.Command{
		Use:   "record -o FILE [-- COMMAND]",
		Short: "Record the CPU time of this host, by container and by path through the kernel",
		Long: "Sample all CPUs of this host for a while, and write the samples to a file for `holdfast doctor diff`\n" +
			"and `go tool pprof`. It shows which containers used the CPUs and on which paths through the kernel. It needs\n" +
			"root, and no agent. It finds the callers of functions of programs with and without frame pointers.\n\n" +
			"With --wait the recording begins with the first instruction of a container that does not run yet. With a command,\n" +
			"such as docker run, it is of the containers that start while the command runs, or of that of --container. Such a recording ends\n" +
			"after --for, or when the containers have ended. Holdfast then waits for the command.",
		Example: "  holdfast doctor record -o bad.pb.gz\n  holdfast doctor record -o web.pb.gz --container web-1 --for 2m\n  holdfast doctor record -o start.pb.gz --container web-1 --wait\n  holdfast doctor record -o start.pb.gz -- docker run --rm shop:7",
		Args:    cobra.ArbitraryArgs,
		RunE: a.within(noLimit, func(ctx context.Context, cmd *cobra.Command, words []string) error {
			var command Command
			if wait || len(words) > 0 {
				r.Start = &profile.Start{Within: within}
			}
			if len(words) > 0 {
				r.Start.Command = func() (ended <-chan struct{}, err error) {
					command, err = a.deps.StartCommand(ctx, words, a.ui.json)
					return command.Ended, err
				}
			}
			switch err := r.Validate(); {
			case file == "":
				return usage(cmd, fmt.Errorf("-o is missing: the file to write"))
			case len(words) > 0 && cmd.ArgsLenAtDash() != 0:
				return usage(cmd, fmt.Errorf("unexpected argument %q: a command follows --", words[0]))
			case err != nil:
				return usage(cmd, err)
			case r.Hz == 0:
				return usage(cmd, fmt.Errorf("--hz is 0"))
			case top < 1:
				return usage(cmd, fmt.Errorf("--top is %d, it must be at least 1", top))
			}
			out, err := profile.Create(file)
			if err != nil {
				return err
			}
			defer out.Abort()
			var done func()
			r.Step, done = a.ui.steps()
			p, err := a.deps.Record(ctx, r)
			done()
			if err != nil {
				return errors.Join(err, command.end(err))
			}
			if err := out.Commit(p); err != nil {
				return errors.Join(err, command.end(err))
			}
			res := recordResult{file, profile.Summarize(p, top)}
			err = a.ui.result(res, func(w io.Writer) { printRecorded(w, res) })
			return errors.Join(err, command.end(nil))
		}),
	}
	f := cmd.Flags()
	f.StringVarP(&file, "output", "o", "", "file to write, readable by its owner only")
	f.DurationVar(&r.For, "for", r.For, "how long to record")
	f.IntVar(&r.Hz, "hz", r.Hz, "samples of each busy CPU per second")
	f.StringVar(&r.Container, "container", "", "only this container, by name or id")
	f.BoolVar(&wait, "wait", false, "wait for the start of the container, and record from its first instruction")
	f.DurationVar(&within, "within", within, "wait at most that long for a start")
	f.BoolVar(&r.FramePointers, "frame-pointers", false, "copy no stacks: find callers by frame pointers only, at less cost")
	f.IntVar(&top, "top", top, "lines of each table")
	return cmd
}

// Command is a user's command that runs. The zero value is none.
type Command struct {
	Ended <-chan struct{} // closed when it has ended
	// Wait waits for its end and returns how it ended. With stop it is interrupted, and
	// killed if it does not end soon.
	Wait func(stop bool) error
}

// end waits for the command. After a failure the command is stopped: it would go on without
// its recording. Its own status then is no news.
func (c Command) end(failed error) error {
	if c.Wait == nil {
		return nil
	}
	if err := c.Wait(failed != nil); failed == nil {
		return err
	}
	return nil
}

// defaultTop is how many lines of each table are shown.
const defaultTop = 10

func printRecorded(w io.Writer, r recordResult) {
	m := r.Meta
	fmt.Fprintf(w, "recorded %.1f s of %s, Linux %s: %s at %d Hz, written to %s\n", m.Seconds, count(m.CPUs, "CPU"), dash(m.Kernel),
		count(int(r.Samples), "sample"), m.Hz, clean(r.File))
	if m.Lost+m.Dropped > 0 {
		fmt.Fprintf(w, "lost: %d records without room in the kernel's buffer, %d stacks without room in the recorder\n", m.Lost, m.Dropped)
	}
	printEach(w, "not visible", m.Gaps)
	if r.Samples == 0 {
		fmt.Fprintln(w, "\nnothing ran")
		return
	}
	fmt.Fprintf(w, "%.2f CPUs were used\n\nCPUS\tIN KERNEL\tCONTAINER\tIMAGE\tCOMMAND\n", r.CPUs)
	for _, c := range r.Containers {
		fmt.Fprintf(w, "%.2f\t%.2f\t%s\t%s\t%s\n", c.CPUs, c.Kernel, dash(c.Container), dash(c.Image), dash(c.Command))
	}
	if len(r.Kernel) > 0 {
		fmt.Fprint(w, "\nCPUS\tCONTAINER\tPATH THROUGH THE KERNEL\n")
		for _, p := range r.Kernel {
			fmt.Fprintf(w, "%.2f\t%s\t%s\n", p.CPUs, dash(p.Container), pathLine(p.Path))
		}
	}
	fmt.Fprint(w, "\nCPUS\tCONTAINER\tFUNCTION\n")
	for _, f := range r.Functions {
		in := ""
		if f.Kernel {
			in = " (kernel)"
		}
		fmt.Fprintf(w, "%.2f\t%s\t%s%s\n", f.CPUs, dash(f.Container), dash(f.Name), in)
	}
}

// maxPathLine is how many functions of a path a line shows, the first and the last
// ones.
const maxPathLine = 7

// pathLine prints a path from the system call inwards.
func pathLine(path []string) string {
	var names []string
	for i, name := range path {
		switch over := len(path) - maxPathLine; {
		case over > 0 && i == maxPathLine-2:
			names = append(names, "…")
		case over > 0 && i > maxPathLine-2 && i < len(path)-1:
		default:
			names = append(names, clean(name))
		}
	}
	return strings.Join(names, " > ")
}
