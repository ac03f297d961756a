package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/mcp"
	"holdfast/internal/hosts/doctor"
)

func (a *app) mcpCmd() *cobra.Command {
	var write bool
	var listen string
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Offer the agent as tools of the Model Context Protocol",
		Long: "Offer the agent as tools of the Model Context Protocol, for programs with a language model: sessions, the doctor, spin-ups,\n" +
			"garbage collection, nodes and protected restarts. The tools work with the rights of this command.\n" +
			"Without --listen the protocol is on standard input and output, and mcp ends with its input. With --listen it is at\n" +
			"http://ADDRESS/mcp, and each request needs a token of api.token_file or api.read_token_file of this host's configuration.\n" +
			"The tools only read, also files of sessions. With --allow-write a model also starts and stops sessions, changes their files,\n" +
			"and runs commands in them: read docs/mcp.md first.",
		Example: "  holdfast mcp\n  holdfast mcp --allow-write\n  holdfast mcp --listen 127.0.0.1:7072",
		RunE: a.within(noLimit, func(ctx context.Context, cmd *cobra.Command, _ []string) error {
			if listen != "" && a.remoteURL() != "" {
				return usage(cmd, errors.New("--listen uses the tokens of this host's agent, and $"+urlEnv+" names another one"))
			}
			c, err := a.agent()
			if err != nil {
				return err
			}
			defer c.Close()
			s := mcp.New(mcp.Options{Client: c, AllowWrite: write, Examine: a.examiner(), Version: a.deps.Version.Version})
			if listen != "" {
				return a.mcpOverHTTP(ctx, s, listen)
			}
			if _, tty := terminal(a.ui.in); tty {
				a.ui.note("waiting for messages of the Model Context Protocol; docs/mcp.md has the configuration of clients")
			}
			return s.Serve(ctx, a.ui.in, a.ui.out)
		}),
	}
	f := cmd.Flags()
	f.BoolVar(&write, "allow-write", false, "also offer tools that start and stop sessions, change their files and run commands in them")
	f.StringVar(&listen, "listen", "", "serve HTTP on this loopback host:port and not standard input")
	return cmd
}

// examiner returns the doctor of this host, nil if the agent is on another one.
func (a *app) examiner() func(context.Context, time.Duration) (doctor.Report, error) {
	if a.remoteURL() != "" {
		return nil
	}
	return func(ctx context.Context, d time.Duration) (doctor.Report, error) {
		return a.deps.Examine(ctx, DoctorRun{For: d, Baselines: a.knownBaselines(ctx), Step: func(string) {}})
	}
}

func (a *app) mcpOverHTTP(ctx context.Context, s *mcp.Server, address string) error {
	h, err := a.deps.Host(ctx)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(a.ui.err, nil))
	tokens, err := api.OpenTokens(h.Tokens, log)
	if err != nil {
		return err
	}
	if tokens == nil {
		return ConfigError(holdfast.WithHint(errors.New("HTTP needs tokens, and the configuration names no file with them"), "set api.token_file or api.read_token_file"))
	}
	l, err := mcp.Listen(ctx, address)
	if errors.Is(err, mcp.ErrAddress) {
		return Usage(err)
	}
	if err != nil {
		return err
	}
	a.ui.note("serving http://%v%s", l.Addr(), mcp.Path)
	if err := s.ServeListener(ctx, l, tokens, log); err != nil {
		return fmt.Errorf("the Model Context Protocol: %w", err)
	}
	return nil
}
