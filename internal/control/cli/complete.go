package cli

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api/client"
)

// completeLimit is how long a shell waits for an agent that does not answer.
const completeLimit = 2 * time.Second

// onlyOne completes an argument only if the command line has none yet.
func onlyOne(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, words []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(words) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, words, begun)
	}
}

// completeKeys completes one more key of an existing session.
func (a *app) completeKeys(cmd *cobra.Command, words []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) (out []cobra.Completion, err error) {
		all, err := c.Sessions(ctx)
		for _, s := range all {
			if !slices.Contains(words, string(s.Key)) {
				out = append(out, cobra.CompletionWithDesc(string(s.Key), string(s.State)))
			}
		}
		return out, err
	})
}

// completeCommands completes a session's key, and then the id of one of its detached
// commands.
func (a *app) completeCommands(cmd *cobra.Command, words []string, to string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(words) == 0 {
		return a.completeKeys(cmd, words, to)
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) (out []cobra.Completion, err error) {
		if len(words) > 1 {
			return nil, nil
		}
		all, err := c.Commands(ctx, holdfast.SessionKey(words[0]))
		for _, one := range all {
			out = append(out, cobra.CompletionWithDesc(one.ID, commandLine(one.Command)))
		}
		return out, err
	})
}

// completeNode completes the id of a node that is up.
func (a *app) completeNode(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) (out []cobra.Completion, err error) {
		all, err := c.Nodes(ctx)
		for _, n := range all {
			out = append(out, cobra.CompletionWithDesc(string(n.ID), nodeState(n)))
		}
		return out, err
	})
}

// completeNodeFlag makes --node complete node ids, with any arguments.
func (a *app) completeNodeFlag(cmd *cobra.Command) { completeFlag(cmd, "node", a.completeNode) }

// completeWords makes a flag complete one of the words.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	completeFlag(cmd, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

func completeFlag(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	// Registering fails if there is no such flag, or twice: the first run would show
	// that.
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err)
	}
}

func (a *app) complete(cmd *cobra.Command, ask func(context.Context, *client.Client) ([]cobra.Completion, error)) (out []cobra.Completion, d cobra.ShellCompDirective) {
	err := a.with(cmd, completeLimit, func(ctx context.Context, c *client.Client) (err error) {
		out, err = ask(ctx, c)
		return err
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
