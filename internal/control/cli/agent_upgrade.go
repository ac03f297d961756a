package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/tasks"
)

const (
	// upgradeLimit is longer than all waits of an upgrade, twice, without the trial.
	upgradeLimit = 5 * time.Minute
	// upgradeLook is the interval of reading the upgrade's state.
	upgradeLook = 50 * time.Millisecond
)

// withUpgrade are the flags that may stand beside --upgrade: they select the agent and
// the output format.
func withUpgrade() []string {
	return []string{"upgrade", "trial", "config", "socket", "json", "timeout"}
}

// upgradeAgent replaces the running agent by the program on disk.
func (a *app) upgradeAgent(cmd *cobra.Command, trial time.Duration) error {
	if trial < 0 || trial > api.MaxTrial {
		return usage(cmd, fmt.Errorf("--trial is %v, it must be between 0 and %v", trial, api.MaxTrial))
	}
	var other string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains(withUpgrade(), f.Name) {
			other = f.Name
		}
	})
	if other != "" {
		return usage(cmd, fmt.Errorf("--%s does not go with --upgrade: the new agent gets the flags of the running one", other))
	}
	if a.givenSocket() == "" && a.remoteURL() == "" {
		socket, err := a.deps.AgentSocket(cmd.Context(), AgentRun{Flags: cmd.Flags()})
		if err != nil {
			return err
		}
		a.socket = socket
	}
	return a.with(cmd, upgradeLimit+trial, func(ctx context.Context, c *client.Client) error {
		u, err := a.followUpgrade(ctx, c, trial)
		if err != nil && ctx.Err() != nil && u.ID != "" {
			return holdfast.WithHint(err, "the upgrade continues without this command")
		}
		if err != nil {
			return err
		}
		if err := a.ui.result(u, func(w io.Writer) { upgradeText(w, u) }); err != nil {
			return err
		}
		if own := a.deps.Version.Version; u.State == api.UpgradeDone && u.To.Version != own {
			a.ui.note("the new agent's version is %s and this command's %s: the agent was started from another file than this command", clean(u.To.Version), own)
		}
		if u.State == api.UpgradeFailed {
			return holdfast.WithHint(fmt.Errorf("the upgrade failed, and the previous agent, version %s and pid %d, serves again: %s", u.From.Version, u.From.PID, u.Error), u.Advice)
		}
		return nil
	})
}

// followUpgrade begins an upgrade and returns when it is over. Its ID is set as soon as
// it cannot be cancelled.
func (a *app) followUpgrade(ctx context.Context, c *client.Client, trial time.Duration) (api.Upgrade, error) {
	a.ui.note("starting the new agent beside the running one…")
	u, err := c.UpgradeAgent(ctx, trial)
	if err != nil {
		return api.Upgrade{}, err
	}
	a.ui.note("the new agent, version %s and pid %d, takes over from version %s, pid %d; new connects wait meanwhile", clean(u.To.Version), u.To.PID, clean(u.From.Version), u.From.PID)
	for state := u.State; u.State != api.UpgradeDone && u.State != api.UpgradeFailed; {
		if tasks.Sleep(ctx, upgradeLook) != nil {
			return u, context.Cause(ctx)
		}
		now, err := c.LastUpgrade(ctx)
		switch {
		case errors.Is(err, client.ErrUnreachable) && ctx.Err() == nil:
			continue // neither agent answers at the moment
		case err != nil:
			return u, err
		case now.ID != u.ID:
			return u, holdfast.WithHint(errors.New("the agent does not know this upgrade: it was started again meanwhile"), "look at the agent's log")
		}
		u = now
		if u.State == api.UpgradeOnTrial && state != u.State {
			a.ui.note("the new agent serves; the old one stands by for %v", trial)
		}
		state = u.State
	}
	return u, nil
}

func upgradeText(w io.Writer, u api.Upgrade) {
	for _, s := range u.Steps {
		fmt.Fprintf(w, "%-10s  %s\n", clean(s.Name), s.Took)
	}
	if u.State == api.UpgradeDone {
		fmt.Fprintf(w, "upgraded from %s (pid %d) to %s (pid %d): %s and %s taken over, connects waited for up to %s\n",
			clean(u.From.Version), u.From.PID, clean(u.To.Version), u.To.PID, count(u.Sessions, "session"), count(u.Connections, "connection"), u.Held)
	}
}
