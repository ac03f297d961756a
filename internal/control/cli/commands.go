package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// group makes cmd a command with subcommands: without one it prints its help, and an
// unknown subcommand is an error. A subcommand without Args takes no argument.
func group(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	for _, sub := range subs {
		if sub.Args == nil {
			sub.Args = args(0, 0, "")
		}
		cmd.AddCommand(sub)
	}
	cmd.Args = func(cmd *cobra.Command, words []string) error {
		if len(words) == 0 {
			return nil
		}
		err := fmt.Errorf("unknown command %q for %q", words[0], cmd.CommandPath())
		cmd.SuggestionsMinimumDistance = 2
		if near := cmd.SuggestionsFor(words[0]); len(near) > 0 {
			return &exitError{err, exitUsage, "did you mean " + strings.Join(near, " or ") + "?"}
		}
		return usage(cmd, err)
	}
	if cmd.RunE == nil {
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	return cmd
}

// args turns the errors of a cobra check into usage errors with a uniform text.
func args(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, words []string) error {
		switch {
		case len(words) < least:
			return usage(cmd, fmt.Errorf("%s needs %s", cmd.CommandPath(), what))
		case len(words) > most && most == 0:
			return usage(cmd, fmt.Errorf("%s takes no argument, but got %q", cmd.CommandPath(), words[0]))
		case len(words) > most:
			return usage(cmd, fmt.Errorf("%s takes %s, but got %q", cmd.CommandPath(), what, words[most]))
		}
		return nil
	}
}

// atLeast refuses a flag's value below least.
func atLeast(cmd *cobra.Command, flag string, value, least int) error {
	if value < least {
		return usage(cmd, fmt.Errorf("--%s is %d, it must be %d or more", flag, value, least))
	}
	return nil
}

func oneKey() cobra.PositionalArgs { return args(1, 1, "one session key") }

// helpCmd is cobra's help command, but an unknown topic is an error.
func helpCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about a command or a topic",
		RunE: func(cmd *cobra.Command, words []string) error {
			about, rest, err := cmd.Root().Find(words)
			if err != nil || about == nil || len(rest) > 0 {
				return usage(cmd.Root(), fmt.Errorf("there is no help about %q", strings.Join(words, " ")))
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

func completionCmd() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:       "completion bash|zsh|fish",
		Short:     "Print a script that completes commands, flags and session keys",
		Long:      "Print a script that makes the shell complete commands, flags and the keys of existing sessions.\nThe script for bash needs the package bash-completion.",
		Example:   "  source <(holdfast completion bash)\n  holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
		ValidArgs: shells,
		Args:      args(1, 1, "one of "+strings.Join(shells, ", ")),
		RunE: func(cmd *cobra.Command, words []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch words[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return usage(cmd, fmt.Errorf("there is no completion for %q", words[0]))
		},
	}
}

// hiddenCmd returns a command that only this binary itself runs.
func hiddenCmd(name string, run func(context.Context, []string) error) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              "Part of Holdfast, for internal use",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               func(cmd *cobra.Command, words []string) error { return run(cmd.Context(), words) },
	}
}
