package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"holdfast/internal/control/api"
)

// Tool is a program beside holdfast that runs experiments. Its command line has the same
// conventions: --json and --timeout, one error line and one hint line, the same exit codes.
type Tool struct {
	Name, Short, Long, Example string
	Version                    api.Version
	Flags                      func(*pflag.FlagSet) // adds flags of all commands
	Experiments                []Experiment
	// Hidden are the roles of other processes of the program, by name. They get their
	// arguments unparsed.
	Hidden map[string]func(ctx context.Context, args []string) error
}

// Experiment is one command of a Tool.
type Experiment struct {
	Name    string // kill
	Short   string // a sentence for the list of commands
	Example string // holdfast bench kill -n 200
	// Setup adds the flags of the experiment and returns the function that runs it
	// once they are parsed. The function writes its progress in lines. Its error about
	// invalid flags is one of Usage.
	Setup func(*pflag.FlagSet) func(ctx context.Context, progress io.Writer) (Result, error)
}

// Result is the result of an experiment, printed as JSON with --json, otherwise as text.
type Result interface {
	WriteText(io.Writer) error
	Failures() int // operations that failed
}

// ToolMain runs the command line of a Tool (args without the program's name) and
// returns the exit code.
func ToolMain(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, t Tool) int {
	a := &app{deps: Deps{Version: t.Version, Now: time.Now, Hidden: t.Hidden}, ui: newUI(stdin, stdout, stderr)}
	root := a.newRoot(&cobra.Command{Use: t.Name, Short: t.Short, Long: t.Long, Example: t.Example})
	if t.Flags != nil {
		t.Flags(root.PersistentFlags())
	}
	for _, e := range t.Experiments {
		group(root, a.experiment(e))
	}
	group(root, a.toolVersion(t))
	return a.run(ctx, root, args, stdin, stdout, stderr)
}

func (a *app) toolVersion(t Tool) *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version of this program", RunE: func(*cobra.Command, []string) error {
		return a.ui.result(t.Version, func(w io.Writer) { fmt.Fprintf(w, "%s\t%s\n", t.Name, versionText(t.Version)) })
	}}
}

func (a *app) experiment(e Experiment) *cobra.Command {
	cmd := &cobra.Command{Use: e.Name, Short: e.Short, Long: e.Short + ".", Example: "  " + e.Example}
	run := e.Setup(cmd.Flags())
	cmd.RunE = a.within(noLimit, func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		progress := a.ui.err
		if a.ui.json {
			progress = io.Discard
		}
		r, err := run(ctx, progress)
		if err != nil {
			err = fmt.Errorf("bench %s: %w", e.Name, err)
			if u := (*exitError)(nil); errors.As(err, &u) && u.code == exitUsage && u.Hint() == "" {
				return usage(cmd, err)
			}
			return err
		}
		var text error
		if err := a.ui.result(r, func(w io.Writer) { text = r.WriteText(w) }); err != nil {
			return err
		}
		if text == nil && r.Failures() > 0 {
			return fmt.Errorf("bench %s: %s failed", e.Name, count(r.Failures(), "operation"))
		}
		return text
	})
	return cmd
}
