package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
)

// versionLimit is how long the command waits for the agent's version.
const versionLimit = 2 * time.Second

// versions is the result of `holdfast version`.
type versions struct {
	Client api.Version  `json:"client"`
	Agent  *api.Version `json:"agent,omitempty"` // absent: no agent answers
}

func (a *app) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this binary and of the agent",
		Long:    "Print the version of this binary and, if an agent answers, of the agent.",
		Example: "  holdfast version --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Client: a.deps.Version}
			// The version of this binary is printed even if no agent answers.
			why := a.with(cmd, versionLimit, func(ctx context.Context, c *client.Client) error {
				agent, err := c.Version(ctx)
				if err == nil {
					v.Agent = &agent
				}
				return err
			})
			return a.ui.result(v, func(w io.Writer) {
				fmt.Fprintf(w, "holdfast\t%s\n", versionText(v.Client))
				if v.Agent == nil {
					fmt.Fprintf(w, "agent\t- (%s)\n", clean(why.Error()))
					return
				}
				fmt.Fprintf(w, "agent\t%s, node %s, pid %d\n", versionText(*v.Agent), dash(string(v.Agent.Node)), v.Agent.PID)
			})
		},
	}
}

func versionText(v api.Version) string {
	s := clean(v.Version)
	if v.Commit != "" {
		s += " (" + shortID(v.Commit) + ")"
	}
	return fmt.Sprintf("%s, %s, %s/%s", s, clean(v.Go), clean(v.OS), clean(v.Arch))
}
