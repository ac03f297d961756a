package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/gc"
)

// GCDeps are garbage collection on a host without an agent; config is the path of the
// configuration, "" for the default one.
type GCDeps struct {
	Open  func(ctx context.Context, config string) (c api.Collector, done func() error, err error)
	Serve func(ctx context.Context, s GCServe) error
}

// GCServe has the options of `holdfast gc serve`.
type GCServe struct {
	Config         string // path, "" for the default one
	API            string // address of the metrics, "none", or "" for that of the configuration
	Stdout, Stderr io.Writer
}

func (a *app) gcCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:   "gc",
		Short: "Free disk space without slowing down spin-ups",
		Long: "Delete unused images, containers, networks and build cache by the policy in the configuration, one at a time, and never while a spin-up runs on this host.\n" +
			"These commands ask the agent. If no agent answers they use this host's engine; run does so only with --config.",
		Example: "  holdfast gc ls\n  holdfast gc plan\n  holdfast gc run\n  holdfast gc status",
	}, a.gcLs(), a.gcPlan(), a.gcRun(), a.gcStatus(), a.gcHistory(), a.gcServe())
}

// collectorUse is the purpose of a collector.
type collectorUse int

const (
	toLook collectorUse = iota
	// toDelete needs a named configuration: the agent that does not answer may have
	// another one, with other images to keep.
	toDelete
)

const configFlagText = "configuration file, for a host without an agent (default /etc/holdfast/holdfast.yaml, which may be missing)"

// withCollector calls do with the agent's collector. It uses this host's collector if a
// configuration is named or, for toLook, if no agent answers.
func (a *app) withCollector(cmd *cobra.Command, limit time.Duration, config string, o collectorUse, do func(context.Context, *client.Client) error) error {
	ctx, cancel := a.limited(cmd, limit)
	defer cancel()
	with := func(c *client.Client) error { return do(ctx, c) }
	open := func() (hostParts, error) {
		c, done, err := a.deps.GC.Open(ctx, config)
		return hostParts{api.Parts{GC: c}, done}, err
	}
	if config != "" {
		p, err := open()
		if err != nil {
			return err
		}
		return withParts(p, with)
	}
	return a.agentOrHost(ctx, func(_ Host, unreachable error) (hostParts, error) {
		if o == toDelete {
			return hostParts{}, holdfast.WithHint(unreachable, "without an agent, name the configuration with the policy: --config FILE")
		}
		a.ui.note("no agent answers: asking this host's engine")
		return open()
	}, with)
}

// collectorCmd makes cmd a command that calls do with a collector.
func (a *app) collectorCmd(cmd *cobra.Command, limit time.Duration, do func(context.Context, *client.Client) error) *cobra.Command {
	var config string
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.withCollector(cmd, limit, config, toLook, do) }
	cmd.Flags().StringVar(&config, "config", "", configFlagText)
	return cmd
}

func (a *app) gcPlan() *cobra.Command {
	return a.collectorCmd(&cobra.Command{
		Use:   "plan",
		Short: "Show what would be deleted now, why, and the space that it would free",
		Long: "Show what garbage collection would delete now, in order, with the reasons and the space that it would free. Nothing is deleted.\n" +
			"Layers that images share are counted once, with the last image of them.",
		Example: "  holdfast gc plan\n  holdfast gc plan --json",
	}, gcLimit, a.printPlan)
}

func (a *app) gcLs() *cobra.Command {
	var only []string
	cmd := a.collectorCmd(&cobra.Command{
		Use:   "ls",
		Short: "List all containers, images, networks and volumes, and what keeps each",
		Long: "List the objects of the engine, the largest first, each with its last use and the reason why garbage collection keeps it.\n" +
			"SIZE is what the removal of only this object would free; SHARED is the size of layers that other images have, too. The sizes of containers and volumes are not measured.\n" +
			"The last use of networks and volumes is only known if a rule of the configuration is for them.",
		Example: "  holdfast gc ls\n  holdfast gc ls --kind image,volume\n  holdfast gc ls --json",
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			for _, k := range only {
				if !slices.Contains(gc.ObjectKinds(), gc.Kind(k)) {
					return usage(cmd, fmt.Errorf("--kind is %q, it must be one of %s", k, gc.Words(gc.ObjectKinds())))
				}
			}
			return nil
		},
	}, gcLimit, func(ctx context.Context, c *client.Client) error {
		l, err := c.GCObjects(ctx)
		if len(only) > 0 {
			l.Objects = slices.DeleteFunc(l.Objects, func(o gc.Object) bool { return !slices.Contains(only, string(o.Kind)) })
		}
		return show(a.ui, l, err, a.objectsText)
	})
	cmd.Flags().StringSliceVar(&only, "kind", nil, "only these: "+gc.Words(gc.ObjectKinds()))
	return cmd
}

// gcLimit is enough for the engine to list all its objects.
const gcLimit = 2 * time.Minute

func (a *app) printPlan(ctx context.Context, c *client.Client) error {
	p, err := c.GCPlan(ctx)
	return show(a.ui, p, err, planText)
}

func (a *app) gcRun() *cobra.Command {
	var (
		config string
		dry    bool
	)
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Collect garbage now",
		Long: "Carry out what `holdfast gc plan` shows, one deletion at a time, each while no spin-up runs on this host.\n" +
			"Nothing is forced: an object that is in use by then is skipped, with the reason. If this command is interrupted, no more is deleted.\n" +
			"If no agent answers, --config is required: only the configuration says what to keep.",
		Example: "  holdfast gc run\n  holdfast gc run --dry-run",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dry {
				return a.withCollector(cmd, gcLimit, config, toLook, a.printPlan)
			}
			return a.withCollector(cmd, noLimit, config, toDelete, a.collect)
		},
	}
	cmd.Flags().StringVar(&config, "config", "", configFlagText)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only show what would be deleted, like `holdfast gc plan`")
	return cmd
}

func (a *app) collect(ctx context.Context, c *client.Client) error {
	cy, err := c.GCRun(ctx, func(o gc.Outcome, deleted bool) {
		if !a.ui.json {
			fmt.Fprintln(a.ui.out, outcomeLine(o, deleted))
		}
	})
	if cy.Begun.IsZero() {
		return err
	}
	return errors.Join(err, a.ui.result(cy, func(w io.Writer) { cycleText(w, cy) }))
}

func (a *app) gcStatus() *cobra.Command {
	return a.collectorCmd(&cobra.Command{
		Use:   "status",
		Short: "Show the disk's use, and the effect of deletions on spin-ups",
		Long: "Show the use of the engine's disk with the marks of the policy, the last cycle, and a comparison of spin-ups with a deletion in their window with those without.\n" +
			"SLOW is the share that was slow by the rules of spinup.slow.",
		Example: "  holdfast gc status\n  holdfast gc status --json",
	}, askLimit, func(ctx context.Context, c *client.Client) error {
		s, err := c.GCStatus(ctx)
		return show(a.ui, s, err, a.gcStatusText)
	})
}

func (a *app) gcHistory() *cobra.Command {
	limit := 20
	cmd := a.collectorCmd(&cobra.Command{
		Use:     "history",
		Short:   "Show past cycles and their deletions",
		Long:    "Show past cycles of garbage collection, the newest first: the time, the trigger, the space that was freed, and how long deletions waited for spin-ups.\nWith --json there is every deletion with its reason.",
		Example: "  holdfast gc history\n  holdfast gc history --limit 1 --json",
		PreRunE: func(cmd *cobra.Command, _ []string) error { return atLeast(cmd, "limit", limit, 0) },
	}, askLimit, func(ctx context.Context, c *client.Client) error {
		list, err := c.GCHistory(ctx, limit)
		return show(a.ui, list, err, a.historyText)
	})
	cmd.Flags().IntVar(&limit, "limit", limit, "at most that many, the newest; 0: all that are kept")
	return cmd
}

func (a *app) gcServe() *cobra.Command {
	s := GCServe{Stdout: a.ui.out, Stderr: a.ui.err}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Collect garbage in the foreground, without an agent",
		Long: "Collect garbage on this host until interrupted, regardless of gc.enabled: for hosts that need only this part of Holdfast.\n" +
			"It serves /metrics and /healthz on the address of an agent's API: by default 127.0.0.1:7071, beyond loopback only with TLS and a token.\n" +
			"Beside an agent that also collects, the two take turns; name another address then.",
		Example: "  holdfast gc serve\n  holdfast gc serve --api none\n  systemctl enable --now holdfast-gc",
		RunE: a.within(noLimit, func(ctx context.Context, _ *cobra.Command, _ []string) error {
			return a.deps.GC.Serve(ctx, s)
		}),
	}
	cmd.Flags().StringVar(&s.Config, "config", "", "configuration file (default /etc/holdfast/holdfast.yaml, which may be missing)")
	cmd.Flags().StringVar(&s.API, "api", "", `host:port of the metrics, or "none" (default 127.0.0.1:7071)`)
	return cmd
}
