package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/platform/engine"
)

// DefaultSocket is the agent's socket unless a flag, a variable or the configuration names
// another.
const DefaultSocket = "/run/holdfast/holdfast.sock"

// SocketEnv is the environment variable for --socket.
const SocketEnv = "HOLDFAST_SOCKET"

// Deps are the functions behind commands that do not call an agent. An error of them is
// printed with its hint. Its wrapped sentinel, or a method ExitCode() int, decides the
// exit code.
type Deps struct {
	// Version is the version of this binary.
	Version api.Version
	// AgentFlags adds the flags of `holdfast agent`.
	AgentFlags func(*pflag.FlagSet)
	// ConfigFlags adds those agent flags that override keys of the configuration, and
	// returns a function that reads them after parsing.
	ConfigFlags func(*pflag.FlagSet) func() config.Overrides
	// CheckFiles reads the files that a configuration names.
	CheckFiles func(config.Config) error
	// TryEngine runs a container with each runtime that the configuration's templates use.
	TryEngine func(context.Context, config.Config) (TriedEngine, error)
	// RunAgent is `holdfast agent`. It returns when the agent has ended; it
	// should end when ctx is done.
	RunAgent func(ctx context.Context, r AgentRun) error
	// AgentSocket is the unix socket of the agent that runs with these flags.
	AgentSocket func(ctx context.Context, r AgentRun) (string, error)
	// HostSocket returns the agent's unix socket by this host's configuration, "" if the
	// configuration cannot be used. nil is always "".
	HostSocket func() string
	// NewNodeID makes a copy of another host a node of its own, and returns the other
	// node's id and the new one. config is the path of the configuration, "" for the
	// default one.
	NewNodeID func(ctx context.Context, config string) (before, now holdfast.NodeID, err error)
	// DrainEngine kills every container of the engine without an agent.
	DrainEngine func(ctx context.Context, q api.DrainRequest, step func(holdfast.Step)) (holdfast.DrainReport, error)
	// OpenLocal opens this host's engine for commands.
	OpenLocal func(ctx context.Context) (Local, error)
	// JobWatcher is the command of the process that cleans up after a killed `holdfast
	// run` (see job.StartWatcher).
	JobWatcher []string
	// Hidden are the roles of other processes of this binary, by name. They get their
	// arguments unparsed.
	Hidden map[string]func(ctx context.Context, args []string) error
	// OpenEngine connects to this host's container engine.
	OpenEngine func(ctx context.Context) (Inspector, error)
	// Keeper is the command of a process that holds connections, see
	// protect.KeeperOptions.
	Keeper []string
	// GC is garbage collection on this host.
	GC GCDeps
	// Examine is `holdfast doctor`.
	Examine func(ctx context.Context, r DoctorRun) (doctor.Report, error)
	// Drill is `holdfast doctor drill`. It sets the options that depend on this host.
	Drill func(ctx context.Context, d drill.Drill, o drill.Options) error
	// Cures are those of `holdfast doctor cure`.
	Cures CureDeps
	// Record is `holdfast doctor record`. It sets the fields that depend on this host.
	Record func(ctx context.Context, r profile.Recorder) (*profile.Profile, error)
	// Bench runs holdfast-bench in place of this process. It returns only if it
	// cannot.
	Bench func(args []string) error
	// Host returns the settings of this host for commands if no agent answers.
	Host func(context.Context) (Host, error)
	// StartCommand starts a user's command with this process's standard input and outputs;
	// its output is standard error if quiet. It is interrupted when ctx is done.
	StartCommand func(ctx context.Context, words []string, quiet bool) (Command, error)
	// Now is the clock for ages.
	Now func() time.Time
}

// Inspector has the functions of a container engine that commands use without an agent.
type Inspector interface {
	Inspect(ctx context.Context, name string) (engine.Container, error)
	Close() error
}

// AgentRun is one call of `holdfast agent`.
type AgentRun struct {
	Flags          *pflag.FlagSet // parsed, with the flags that AgentFlags added
	Socket         string         // of --socket or the environment; "" if neither is given
	Stdout, Stderr io.Writer
	// Step and Drained print the progress of the drain at the end.
	Step    func(holdfast.Step)
	Drained func(holdfast.DrainReport)
}

// app is one call of the command line.
type app struct {
	deps    Deps
	ui      *ui
	socket  string
	timeout time.Duration
}

// Main runs the command line (args without the program's name) and returns the exit
// code. A stream is a terminal if it is an *os.File that is one.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, d Deps) int {
	a := &app{deps: d, ui: newUI(stdin, stdout, stderr)}
	return a.run(ctx, a.root(), args, stdin, stdout, stderr)
}

func (a *app) run(ctx context.Context, root *cobra.Command, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	a.ui.fail(err)
	return exitCode(err)
}

func (a *app) root() *cobra.Command {
	root := a.newRoot(&cobra.Command{
		Use:     "holdfast",
		Short:   "Keep container hosts fast, and keep every connection while doing so",
		Long:    "Holdfast runs sessions in containers on this host, one per key, and keeps their connections.",
		Example: "  holdfast session start alice\n  holdfast session ls\n  holdfast drain",
	})
	root.PersistentFlags().StringVar(&a.socket, "socket", "", "unix socket of the agent (default $"+SocketEnv+", or api.socket of the configuration: "+DefaultSocket+")")
	group(root, a.sessionCmd(), a.nodeCmd(), a.drainCmd(), a.pullCmd(), a.runCmd(), a.spinupCmd(), a.experimentCmd(), a.protectCmd(), a.gcCmd(), a.tokenCmd(), a.configCmd(), a.agentCmd(), a.doctorCmd(), a.clusterCmd(), a.mcpCmd(), a.benchCmd(), a.versionCmd())
	return root
}

// newRoot gives a program's root command what all programs have in common.
func (a *app) newRoot(root *cobra.Command) *cobra.Command {
	root.SilenceErrors, root.SilenceUsage = true, true
	f := root.PersistentFlags()
	f.BoolVar(&a.ui.json, "json", false, "print the result as JSON")
	f.DurationVar(&a.timeout, "timeout", 0, "longest time for the command, such as 30s or 2m (default 10s to ask, 1m to stop, 10m to start, a drain's budget and 1m, else none)")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if f.Changed("timeout") && a.timeout <= 0 {
			return usage(cmd, fmt.Errorf("--timeout is %v, it must be over 0", a.timeout))
		}
		return nil
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, err) })
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(helpCmd())
	group(root, completionCmd(), exitCodesTopic())
	a.addManCmd(root)
	for name, run := range a.deps.Hidden {
		root.AddCommand(hiddenCmd(name, run))
	}
	return root
}

// Time limits of commands without --timeout.
const (
	askLimit   = 10 * time.Second
	stopLimit  = time.Minute
	startLimit = 10 * time.Minute
	noLimit    = time.Duration(0)
)

// limited returns the command's context with the given limit, or with that of
// --timeout.
func (a *app) limited(cmd *cobra.Command, limit time.Duration) (context.Context, context.CancelFunc) {
	if a.timeout > 0 {
		limit = a.timeout
	}
	if limit == noLimit {
		return context.WithCancel(cmd.Context())
	}
	return context.WithTimeout(cmd.Context(), limit)
}

// within returns a RunE that calls do with the command's limited context.
func (a *app) within(limit time.Duration, do func(ctx context.Context, cmd *cobra.Command, words []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, words []string) error {
		ctx, cancel := a.limited(cmd, limit)
		defer cancel()
		return do(ctx, cmd, words)
	}
}

// givenSocket returns the socket that the user named, "" if there is none.
func (a *app) givenSocket() string {
	return cmp.Or(a.socket, os.Getenv(SocketEnv))
}

// agent returns a client of the agent.
func (a *app) agent() (*client.Client, error) {
	if url := a.remoteURL(); url != "" {
		return remoteAgent(url)
	}
	return a.localAgent()
}

// localAgent returns a client of this host's agent, even if $HOLDFAST_URL names the agent
// of another host.
func (a *app) localAgent() (*client.Client, error) {
	socket := a.givenSocket()
	if socket == "" && a.deps.HostSocket != nil {
		socket = a.deps.HostSocket()
	}
	return client.New(client.Options{Socket: cmp.Or(socket, DefaultSocket)})
}

// with calls do with a client and the command's limited context.
func (a *app) with(cmd *cobra.Command, limit time.Duration, do func(context.Context, *client.Client) error) error {
	c, err := a.agent()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := a.limited(cmd, limit)
	defer cancel()
	return do(ctx, c)
}

// withKey is with for a command with a session key as first argument.
func (a *app) withKey(cmd *cobra.Command, arg string, limit time.Duration, do func(context.Context, *client.Client, holdfast.SessionKey) error) error {
	key, err := holdfast.ParseSessionKey(arg)
	if err != nil {
		return err
	}
	return a.with(cmd, limit, func(ctx context.Context, c *client.Client) error { return do(ctx, c, key) })
}

// aboutKey makes cmd a command with a session key as its only argument.
func (a *app) aboutKey(cmd *cobra.Command, limit time.Duration, do func(context.Context, *client.Client, holdfast.SessionKey) error) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = oneKey(), onlyOne(a.completeKeys)
	cmd.RunE = func(cmd *cobra.Command, words []string) error { return a.withKey(cmd, words[0], limit, do) }
	return cmd
}
