package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"holdfast/internal/control/config"
)

// ConfigEnv names the configuration file if no argument does.
const ConfigEnv = "HOLDFAST_CONFIG"

func (a *app) configCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:     "config",
		Short:   "Check the configuration, and show its values and their sources",
		Long:    "Check the configuration of this host's agent, and show the effective values and the source of each. No agent is needed.",
		Example: "  holdfast config check\n  holdfast config show --changed",
	}, a.configCheck(), a.configShow())
}

func (a *app) configCheck() *cobra.Command {
	var (
		role    string
		noFiles bool
		engine  bool
		explain func(*cobra.Command, []string) (config.Explained, error)
	)
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check whether an agent can start with a configuration",
		Long: "Check the syntax, every key and value and their combinations, and read the named files: certificates, tokens, profiles.\n" +
			"The default FILE is that of $" + ConfigEnv + ", then " + config.DefaultPath + ". The flags are those of the agent, and override the file.\n" +
			"The check starts nothing and connects to no address. An error gives exit code 2.\n" +
			"With --try-engine it also connects to the container engine, and runs a container of a few hundred bytes with the engine's default runtime and with each runtime that a template names. It removes all of them.",
		Example: "  holdfast config check\n  holdfast config check new.yaml --no-files\n  holdfast config check --try-engine",
		Args:    args(0, 1, "at most one file"),
		RunE: func(cmd *cobra.Command, words []string) error {
			if role != roleAgent && role != roleGC {
				return usage(cmd, fmt.Errorf("--for is %q, it must be %s or %s", role, roleAgent, roleGC))
			}
			if engine && role != roleAgent {
				return usage(cmd, errors.New("--try-engine goes with --for agent: a collection starts no container"))
			}
			e, err := explain(cmd, words)
			if err != nil {
				return err
			}
			if err := a.checkConfig(e, role, noFiles); err != nil {
				return ConfigError(fmt.Errorf("%s: %w", e.File, err))
			}
			result := checkResult{File: e.File, Found: e.Found}
			if engine {
				if result.Engine, err = a.tryEngine(cmd.Context(), e.Config); err != nil {
					return err
				}
			}
			return a.ui.result(result, func(w io.Writer) { checkText(w, result) })
		},
	}
	explain = a.explainer(cmd.Flags())
	cmd.Flags().StringVar(&role, "for", roleAgent, "program that will use it: agent, or gc for 'holdfast gc serve', which needs no templates")
	cmd.Flags().BoolVar(&engine, "try-engine", false, "also run a container of a few hundred bytes on the engine, with each runtime")
	cmd.Flags().BoolVar(&noFiles, "no-files", false, "do not read the named files: they are on another host")
	return cmd
}

// What a configuration is checked for.
const (
	roleAgent = "agent"
	roleGC    = "gc"
)

// checkResult is the result of `config check` for a valid configuration.
type checkResult struct {
	File   string       `json:"file"`
	Found  bool         `json:"found"`
	Engine *TriedEngine `json:"engine,omitempty"` // with --try-engine
}

// TriedEngine is an engine that runs containers.
type TriedEngine struct {
	Name     string   `json:"name"`
	Version  string   `json:"version"`
	Runtimes []string `json:"runtimes"` // those that ran a container
	// EngineNetworks is why sessions get networks of the engine's, and not of Holdfast's;
	// "" if nothing is known against those.
	EngineNetworks string `json:"engine_networks,omitempty"`
}

// tryTime bounds the trial of an engine if there is no --timeout. One trial takes less than
// a second on an idle host.
const tryTime = time.Minute

func (a *app) tryEngine(ctx context.Context, c config.Config) (*TriedEngine, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(a.timeout, tryTime))
	defer cancel()
	tried, err := a.deps.TryEngine(ctx, c)
	if err != nil {
		return nil, err
	}
	return &tried, nil
}

func checkText(w io.Writer, r checkResult) {
	if r.Found {
		fmt.Fprintf(w, "%s is valid\n", clean(r.File))
	} else {
		fmt.Fprintf(w, "%s does not exist; the defaults are valid\n", clean(r.File))
	}
	if e := r.Engine; e != nil {
		fmt.Fprintf(w, "%s %s runs containers; runtimes tried: %s\n", clean(e.Name), clean(e.Version), clean(strings.Join(e.Runtimes, ", ")))
		if e.EngineNetworks != "" {
			fmt.Fprintf(w, "sessions get networks of the engine's: %s\n", clean(e.EngineNetworks))
		}
	}
}

func (a *app) checkConfig(e config.Explained, role string, noFiles bool) error {
	validate := e.Config.Validate
	if role == roleGC {
		validate = e.Config.ValidateCollector
	}
	if err := validate(); err != nil {
		return err
	}
	if noFiles {
		return nil
	}
	return a.deps.CheckFiles(e.Config)
}

func (a *app) configShow() *cobra.Command {
	var (
		changed bool
		explain func(*cobra.Command, []string) (config.Explained, error)
	)
	cmd := &cobra.Command{
		Use:   "show [FILE]",
		Short: "Show every effective value and its source",
		Long: "Show every key with the value that an agent would start with, and its source: the default, the file with the line, a flag, or the environment.\n" +
			"The default FILE is that of $" + ConfigEnv + ", then " + config.DefaultPath + ". The flags are those of the agent, and override the file.\n" +
			"Possible secrets are hidden: values of containers' environment, and passwords in URLs. A running agent keeps the values that it started with.",
		Example: "  holdfast config show\n  holdfast config show --changed --json",
		Args:    args(0, 1, "at most one file"),
		RunE: func(cmd *cobra.Command, words []string) error {
			e, err := explain(cmd, words)
			if err != nil {
				return err
			}
			if changed {
				e.Settings = slices.DeleteFunc(e.Settings, func(s config.Setting) bool { return s.From == config.FromDefault })
			}
			return a.ui.result(e, func(w io.Writer) { settingsTable(w, e) })
		},
	}
	explain = a.explainer(cmd.Flags())
	cmd.Flags().BoolVar(&changed, "changed", false, "only values that differ from the default")
	return cmd
}

// explainer adds the agent's flags, and returns a function that reads a configuration
// with them.
func (a *app) explainer(f *pflag.FlagSet) func(*cobra.Command, []string) (config.Explained, error) {
	flags := a.deps.ConfigFlags(f)
	return func(cmd *cobra.Command, words []string) (config.Explained, error) {
		file := os.Getenv(ConfigEnv)
		if len(words) > 0 {
			file = words[0]
		}
		over := flags()
		over.Socket = a.socket
		e, err := config.Explain(cmd.Context(), file, over, config.Environment{DockerHost: os.Getenv("DOCKER_HOST"), Socket: os.Getenv(SocketEnv)})
		if err != nil {
			return e, ConfigError(err)
		}
		return e, nil
	}
}

func settingsTable(w io.Writer, e config.Explained) {
	if !e.Found {
		fmt.Fprintf(w, "%s does not exist\n", clean(e.File))
	}
	fmt.Fprintln(w, "KEY\tVALUE\tFROM")
	for _, s := range e.Settings {
		fmt.Fprintf(w, "%s\t%s\t%s\n", clean(s.Key), settingText(s), settingSource(s, e.File))
	}
}

func settingText(s config.Setting) string {
	switch v := s.Value.(type) {
	case string:
		return dash(v)
	case []string:
		return dash(strings.Join(v, ", "))
	}
	if s.Hidden {
		return "(hidden)"
	}
	return clean(fmt.Sprint(s.Value))
}

func settingSource(s config.Setting, file string) string {
	switch s.From {
	case config.FromFile:
		return clean(file) + ":" + strconv.Itoa(s.Line)
	case config.FromFlag, config.FromEnvironment:
		return string(s.From) + " " + s.Name
	}
	return string(s.From)
}
