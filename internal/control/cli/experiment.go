package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/spinup/experiment"
)

func (a *app) experimentCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:   "experiment",
		Short: "Try a change on a part of the sessions or nodes, and compare",
		Long: "Experiments are in the agents' configuration. A part of the sessions boots from another template, or a part of the nodes is set up differently.\n" +
			"The spin-ups of both arms are compared, and an experiment whose treatment is worse stops by itself.",
		Example: "  holdfast experiment ls\n  holdfast experiment show next-image",
	}, a.experimentLs(), a.experimentShow(), a.experimentStop(), a.experimentArm())
}

func (a *app) experimentLs() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List the experiments",
		Long:    "List the experiments of the agent's configuration. ARM is that of this node, for an experiment by node.",
		Example: "  holdfast experiment ls",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				all, err := c.Experiments(ctx)
				return show(a.ui, all, err, experimentsText)
			})
		},
	}
}

func (a *app) experimentShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Compare the arms of an experiment",
		Long: "Ask all nodes about the spin-ups of an experiment, and compare its arms.\n" +
			"The intervals of the first table hold however often the experiment is looked at. It stops by itself once the treatment's interval is above the control's.\n" +
			"The other tables are those of `holdfast spinup stats`, whose intervals are for one look.",
		Example:           "  holdfast experiment show next-image",
		Args:              oneExperiment(),
		ValidArgsFunction: a.completeExperiment,
		RunE: func(cmd *cobra.Command, words []string) error {
			return a.with(cmd, statsLimit, func(ctx context.Context, c *client.Client) error {
				r, err := c.Experiment(ctx, words[0])
				return show(a.ui, r, err, experimentText)
			})
		},
	}
}

func (a *app) experimentStop() *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use:   "stop NAME",
		Short: "Stop an experiment for good",
		Long: "Stop an experiment for good, on all nodes within 15 s. The next boots are as without it; running sessions stay.\n" +
			"To try the same again, configure an experiment with another name.",
		Example:           "  holdfast experiment stop next-image --why 'enough figures'",
		Args:              oneExperiment(),
		ValidArgsFunction: a.completeExperiment,
		RunE: func(cmd *cobra.Command, words []string) error {
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				if err := c.StopExperiment(ctx, words[0], why); err != nil {
					return err
				}
				return a.ui.result(map[string]string{"stopped": words[0]}, func(w io.Writer) { fmt.Fprintf(w, "stopped %s\n", clean(words[0])) })
			})
		},
	}
	cmd.Flags().StringVar(&why, "why", "stopped by an operator", "reason that `experiment ls` shows, at most 200 bytes")
	return cmd
}

func (a *app) experimentArm() *cobra.Command {
	var (
		key     string
		file    string
		explain func(*cobra.Command, []string) (config.Explained, error)
	)
	cmd := &cobra.Command{
		Use:   "arm NAME",
		Short: "Print the arm of this node or of a session: control or treatment",
		Long: "Print the arm that the configuration assigns to this node, or to a session's key. No agent is needed, and a stopped experiment is not seen.\n" +
			"A host's setup can ask before it installs or configures the container engine.",
		Example: "  holdfast experiment arm overlay2\n  holdfast experiment arm next-image --key alice",
		Args:    oneExperiment(),
		RunE: func(cmd *cobra.Command, words []string) error {
			var files []string
			if file != "" {
				files = []string{file}
			}
			e, err := explain(cmd, files)
			if err != nil {
				return err
			}
			arm, err := armOf(e.Config, words[0], key)
			if err != nil {
				return err
			}
			return a.ui.result(map[string]holdfast.Arm{"arm": arm}, func(w io.Writer) { fmt.Fprintln(w, arm) })
		},
	}
	explain = a.explainer(cmd.Flags())
	cmd.Flags().StringVar(&file, "config", "", "configuration file (default that of $"+ConfigEnv+", then "+config.DefaultPath+")")
	cmd.Flags().StringVar(&key, "key", "", "session, for an experiment by session")
	return cmd
}

func oneExperiment() cobra.PositionalArgs { return args(1, 1, "one experiment's name") }

// armOf returns the arm of the configuration's node, or of the key.
func armOf(c config.Config, name, key string) (holdfast.Arm, error) {
	for _, s := range c.ExperimentSpecs() {
		switch {
		case s.Name != name:
		case s.By == experiment.ByNode && key != "":
			return "", holdfast.WithHint(fmt.Errorf("experiment %s is by node: a session has no arm", name), "leave --key out")
		case s.By == experiment.ByNode:
			return s.Arm(c.Node), nil
		case key == "":
			return "", holdfast.WithHint(fmt.Errorf("experiment %s is by session: a node has no arm", name), "name a session with --key")
		default:
			k, err := holdfast.ParseSessionKey(key)
			return s.Arm(string(k)), err
		}
	}
	return "", holdfast.WithHint(fmt.Errorf("the configuration has no experiment %.64q", name), "`holdfast config show` prints the configuration")
}

func (a *app) completeExperiment(cmd *cobra.Command, words []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) (out []cobra.Completion, err error) {
		if len(words) > 0 {
			return nil, errors.New("there is one experiment already")
		}
		all, err := c.Experiments(ctx)
		for _, x := range all {
			out = append(out, cobra.CompletionWithDesc(x.Name, string(x.State)))
		}
		return out, err
	})
}

func experimentsText(w io.Writer, all []holdfast.Experiment) {
	fmt.Fprintln(w, "NAME\tBY\tSHARE\tTEMPLATE\tWITH\tSTATE\tBEGUN\tARM\tWHY")
	for _, x := range all {
		fmt.Fprintf(w, "%s\t%s\t%v%%\t%s\t%s\t%s\t%s\t%s\t%s\n", clean(x.Name), clean(x.By), x.Share, dash(x.Template), dash(x.With),
			clean(string(x.State)), stamp(x.Begun), dash(string(x.NodeArm)), dash(x.Why))
	}
}

func experimentText(w io.Writer, r experiment.Report) {
	experimentsText(w, []holdfast.Experiment{r.Experiment})
	fmt.Fprintf(w, "\nMEASURE\tCONTROL\tTREATMENT\tTREATMENT IS WORSE\n")
	for _, v := range r.Verdicts {
		answer := "not shown"
		if v.Worse {
			answer = "YES"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", clean(measureText(v.Measure)), armText(v.Control), armText(v.Treatment), answer)
	}
	fmt.Fprintf(w, "An experiment without a difference is ever stopped with a probability of at most %s.\n\n", percent(r.ErrorRate))
	fleetReportText(w, r.Fleet)
}

func measureText(measure string) string {
	if measure == experiment.Failed {
		return measure
	}
	return "slow " + measure
}

// armText formats a measure of one arm: "3 of 120 (0.4% to 9.1%)".
func armText(s experiment.Share) string {
	return fmt.Sprintf("%d of %d (%s to %s)", s.Hits, s.Count, percent(s.Low), percent(s.High))
}
