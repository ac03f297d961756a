package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"holdfast"
	"holdfast/bench"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/control/config"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/platform/engine"
)

// DefaultSocket is where the agent listens when nothing else is said.
const DefaultSocket = "/run/holdfast/holdfast.sock"

// SocketEnv is the environment variable that stands for --socket.
const SocketEnv = "HOLDFAST_SOCKET"

// Deps is what commands do that are not calls of an agent. An error from any of
// these functions is printed with its hint; it decides the exit code by what it
// wraps, or by a method ExitCode() int of its own.
type Deps struct {
	// Version is this binary's.
	Version api.Version
	// AgentFlags adds the flags of `holdfast agent`; nil: none.
	AgentFlags func(*pflag.FlagSet)
	// ConfigFlags adds those of them that come before keys of the configuration,
	// and returns what reads them once they are parsed.
	ConfigFlags func(*pflag.FlagSet) func() config.Overrides
	// CheckFiles reads the files that a configuration names.
	CheckFiles func(config.Config) error
	// RunAgent is `holdfast agent`. It returns when the agent has ended; it
	// should end when ctx is done.
	RunAgent func(ctx context.Context, r AgentRun) error
	// AgentSocket is the unix socket of the agent that runs with these flags;
	// nil: where the command line says.
	AgentSocket func(ctx context.Context, r AgentRun) (string, error)
	// DrainEngine kills every container of the engine without an agent; nil:
	// only an agent can.
	DrainEngine func(ctx context.Context, q api.DrainRequest, step func(holdfast.Step)) (holdfast.DrainReport, error)
	// OpenLocal opens what commands need that act on this host's engine; nil:
	// there are none.
	OpenLocal func(ctx context.Context) (Local, error)
	// JobWatcher is the command of a process that cleans up after a `holdfast
	// run` that was killed (see job.StartWatcher); empty: the next one does.
	JobWatcher []string
	// Hidden are the roles that other processes of this binary play, by
	// name; they get their arguments as they came.
	Hidden map[string]func(ctx context.Context, args []string) error
	// OpenEngine connects to this host's container engine.
	OpenEngine func(ctx context.Context) (Inspector, error)
	// Keeper is the command of a process that holds connections, see
	// protect.KeeperOptions.
	Keeper []string
	// ProtectLocks is the directory where ports that are protected are locked;
	// "" is below /run/holdfast.
	ProtectLocks string
	// GC is garbage collection on this host; the zero value: only an agent can.
	GC GCDeps
	// Examine is `holdfast doctor`.
	Examine func(ctx context.Context, r DoctorRun) (doctor.Report, error)
	// Drill is `holdfast doctor drill`.
	Drill func(ctx context.Context, r DrillRun) error
	// Cures are those of `holdfast doctor cure`.
	Cures CureDeps
	// Record is `holdfast doctor record`.
	Record func(ctx context.Context, r RecordRun) (*profile.Profile, error)
	// Benches are the experiments of `holdfast bench`.
	Benches []Bench
	// Host says what commands that work on this host need to know when no
	// agent answers; nil: the defaults.
	Host func(context.Context) (Host, error)
	// Now is the clock that ages are shown by; nil: time.Now.
	Now func() time.Time
}

// Inspector is as much of a container engine as commands ask without an agent.
type Inspector interface {
	Inspect(ctx context.Context, name string) (engine.Container, error)
	Close() error
}

// AgentRun is one call of `holdfast agent`.
type AgentRun struct {
	Flags          *pflag.FlagSet // parsed, with what AgentFlags added
	Socket         string         // of --socket or the environment; "" where neither was given
	Stdout, Stderr io.Writer
	// Step and Drained print how the drain at the end goes.
	Step    func(holdfast.Step)
	Drained func(holdfast.DrainReport)
}

// Bench is one experiment of `holdfast bench`.
type Bench struct {
	Name    string // kill
	Short   string // a sentence for the list of commands
	Example string // holdfast bench kill -n 200
	// Setup adds the bench's flags and returns what runs it once they are
	// parsed. The bench says on progress how far it is, in lines; flags that
	// cannot be are an error of Usage.
	Setup func(*pflag.FlagSet) func(ctx context.Context, progress io.Writer) (bench.Result, error)
}

// app is one call of the command line.
type app struct {
	deps    Deps
	ui      *ui
	socket  string
	timeout time.Duration
}

// Main runs the command line (args without the program's name) and returns the
// exit code. Terminals are noticed where a stream is an *os.File.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, d Deps) int {
	if d.Now == nil {
		d.Now = time.Now
	}
	a := &app{deps: d, ui: newUI(stdin, stdout, stderr)}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	a.ui.fail(err)
	return exitCode(err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "holdfast",
		Short:         "Keep container hosts fast, and hold every connection while doing so",
		Long:          "Holdfast runs sessions in containers on this host, one per key, and keeps hold of their connections.",
		Example:       "  holdfast session start alice\n  holdfast session ls\n  holdfast drain",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	f := root.PersistentFlags()
	f.StringVar(&a.socket, "socket", "", "unix socket of the agent (default "+DefaultSocket+", or $"+SocketEnv+")")
	f.BoolVar(&a.ui.json, "json", false, "print the result as JSON")
	f.DurationVar(&a.timeout, "timeout", 0, "longest the command may take, such as 30s or 2m (default 10s to ask, 1m to stop, 10m to start, a drain's budget and 1m, else none)")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if f.Changed("timeout") && a.timeout <= 0 {
			return usage(cmd, fmt.Errorf("--timeout is %v, it has to be over 0", a.timeout))
		}
		return nil
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, err) })
	root.CompletionOptions.DisableDefaultCmd = true
	group(root, a.sessionCmd(), a.nodeCmd(), a.drainCmd(), a.pullCmd(), a.runCmd(), a.spinupCmd(), a.protectCmd(), a.gcCmd(), a.tokenCmd(), a.configCmd(), a.agentCmd(), a.doctorCmd(), a.clusterCmd(), a.benchCmd(), a.versionCmd(),
		completionCmd(), a.manCmd(), exitCodesTopic())
	for name, run := range a.deps.Hidden {
		root.AddCommand(hiddenCmd(name, run))
	}
	root.SetHelpCommand(helpCmd())
	return root
}

// Time limits of commands, where --timeout does not say otherwise.
const (
	askLimit   = 10 * time.Second
	stopLimit  = time.Minute
	startLimit = 10 * time.Minute
	noLimit    = time.Duration(0)
)

// limited returns the command's context with the given limit, or that of
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

// givenSocket is the socket that the user named, "" where none was.
func (a *app) givenSocket() string {
	if a.socket != "" {
		return a.socket
	}
	return os.Getenv(SocketEnv)
}

// agent is the client of the agent.
func (a *app) agent() (*client.Client, error) {
	if url := a.remoteURL(); url != "" {
		return remoteAgent(url)
	}
	socket := a.givenSocket()
	if socket == "" {
		socket = DefaultSocket
	}
	return client.New(client.Options{Socket: socket})
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

// withKey is with for a command whose first argument is a session key.
func (a *app) withKey(cmd *cobra.Command, arg string, limit time.Duration, do func(context.Context, *client.Client, holdfast.SessionKey) error) error {
	key, err := holdfast.ParseSessionKey(arg)
	if err != nil {
		return err
	}
	return a.with(cmd, limit, func(ctx context.Context, c *client.Client) error { return do(ctx, c, key) })
}

// aboutKey makes cmd a command whose only argument is a session key.
func (a *app) aboutKey(cmd *cobra.Command, limit time.Duration, do func(context.Context, *client.Client, holdfast.SessionKey) error) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = oneKey(), a.completeKey
	cmd.RunE = func(cmd *cobra.Command, words []string) error { return a.withKey(cmd, words[0], limit, do) }
	return cmd
}
