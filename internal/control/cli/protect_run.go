package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/supervise"
	"holdfast/internal/hosts/protect/unit"
	"holdfast/internal/platform/linux/listenfd"
	"holdfast/internal/platform/sdnotify"
)

// superviseFlags are the flags of `holdfast protect run`.
type superviseFlags struct {
	giveUp  time.Duration
	backoff time.Duration
	user    string
}

func (a *app) protectRunCmd() *cobra.Command {
	var f superviseFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- SERVER [ARG...]",
		Short: "Run a server, start it again when it crashes, and refuse no connection meanwhile",
		Long: `Run a server, start it again when it crashes, and refuse no connection meanwhile.

Beside each TCP socket on which the server listens stays a second socket. When the
server's is gone, new connections wait in the second one, and those that the server has
not accepted, until the server listens again. The server needs no change. It has to stay
in the foreground, and may have worker processes.

A crash is any end but exit code 0. The pause before a new start is --backoff after the
first crash, and doubles up to 5s. If no server has listened for --give-up, the
connections that wait are refused, and the exit code is 11 once no server runs.

SIGTERM and SIGINT are passed to the server and end this command with it: the exit code
is the server's, or 128 + n if signal n ended it. SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and
SIGWINCH are passed on. If this command is killed, the server runs on without it. In a
systemd service with FileDescriptorStoreMax=, also a restart of the service and a kill of
this command refuse no connection. It needs root; the server runs as --user.`,
		Example: "  holdfast protect run -- nginx -g 'daemon off;'\n" +
			"  holdfast protect run --user www-data --give-up 2m -- node server.js",
		Args: args(1, 1<<16, "a server's command after --"),
		RunE: func(cmd *cobra.Command, words []string) error {
			o, err := f.options(words)
			if err != nil {
				return usage(cmd, err)
			}
			o.Stdout, o.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			o.LockDir, o.Log = protect.LockDir, slog.New(slog.NewTextHandler(a.ui.err, nil))
			return supervised(context.WithoutCancel(cmd.Context()), o)
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().DurationVar(&f.giveUp, "give-up", 30*time.Second, "longest time without a listening server")
	cmd.Flags().DurationVar(&f.backoff, "backoff", 100*time.Millisecond, "pause after the first crash")
	cmd.Flags().StringVar(&f.user, "user", "", "user of the server, by name or number; a server that changes its user by itself needs none")
	return cmd
}

// options checks the flags.
func (f *superviseFlags) options(words []string) (supervise.Options, error) {
	o := supervise.Options{Command: words, GiveUp: f.giveUp, Backoff: f.backoff}
	if f.giveUp <= 0 || f.backoff <= 0 {
		return o, fmt.Errorf("--give-up is %v and --backoff is %v, they must be over 0", f.giveUp, f.backoff)
	}
	var err error
	if f.user != "" {
		o.User, err = userOf(f.user)
	}
	return o, err
}

// userOf finds a user by name or number.
func userOf(name string) (*supervise.User, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return nil, fmt.Errorf("--user: there is no user %q", name)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("--user: %w", err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("--user: %w", err)
	}
	return &supervise.User{UID: uint32(uid), GID: uint32(gid)}, nil
}

// supervised runs the server, with the signals of this process and the store of a service
// manager.
func supervised(ctx context.Context, o supervise.Options) error {
	sockets, _, err := listenfd.FromEnvironment()
	if err != nil {
		return err
	}
	for _, s := range sockets {
		if supervise.Stored(s.Name) {
			o.Stored = append(o.Stored, s)
			continue
		}
		o.Log.Warn("run: a socket of the service manager is not passed to the server", "name", s.Name)
		s.Close()
	}
	if listenfd.Managed() {
		o.Restarts = restartsSoon(o.Log)
		o.Ready = func() { sdnotify.Notify(o.Log, sdnotify.Ready) }
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH)
	defer signal.Stop(signals)
	o.Signals = signals
	code, err := supervise.Run(ctx, o)
	switch {
	case errors.Is(err, supervise.ErrGaveUp):
		return &exitError{err: err, code: exitGaveUp}
	case err != nil:
		return err
	case code != 0:
		return status(code)
	}
	return nil
}

// restartsSoon returns a function that asks systemd whether it restarts the service of this
// process. Without an answer the connections of a stop are refused, as without this command.
func restartsSoon(log *slog.Logger) func(context.Context) bool {
	return func(ctx context.Context) bool {
		own, err := unit.Own()
		if err != nil || own == "" {
			return false
		}
		var is bool
		err = withSystemd(ctx, func(m *unit.Manager) (err error) {
			is, err = unit.Restarting(ctx, m, own)
			return err
		})
		if err != nil {
			log.Warn("run: ask systemd whether the service is restarted", "err", err)
		}
		return is
	}
}
