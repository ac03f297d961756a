// Package execnode runs commands in the containers of a node's sessions, for the API:
// those that end with their caller, and detached ones.
package execnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/agent/process"
	"holdfast/internal/control/api"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/metric"
	"holdfast/internal/sessions/commands"
	"holdfast/internal/sessions/session"
)

// Node implements api.CommandService. Its methods may be called from any goroutine.
type Node struct {
	engine   engine.Engine
	sessions *session.Manager
	keeper   *commands.Client
}

// New returns the commands of a node. argv is a command line whose process calls Main.
func New(c config.Config, argv []string, e engine.Engine, s *session.Manager, r prometheus.Registerer, log *slog.Logger) (*Node, error) {
	text, err := json.Marshal(keeperConfig{c.RunDir, c.DataDir, c.Engine})
	if err != nil {
		return nil, err
	}
	n := &Node{e, s, commands.NewClient(c.RunDir, append(argv[:len(argv):len(argv)], string(text)), log)}
	n.keeper.Register(metric.Registry{Registerer: r})
	return n, nil
}

// keeperConfig is what a command keeper has of the agent's configuration.
type keeperConfig struct {
	RunDir, DataDir string
	Engine          config.Engine
}

// Main runs a command keeper and returns its exit code.
func Main(ctx context.Context, args []string, log *slog.Logger) int {
	var k keeperConfig
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &k) != nil {
		return 2 // only an agent starts it
	}
	return commands.Main(ctx, k.RunDir, func(ctx context.Context) (engine.Engine, error) {
		return process.OpenEngine(ctx, config.Config{DataDir: k.DataDir, Engine: k.Engine})
	}, log)
}

// Run follows the keeper of detached commands until ctx is done. The commands go on.
func (n *Node) Run(ctx context.Context) error { return n.keeper.Run(ctx) }

// Leave tells the keeper that no agent follows: it ends once no command runs.
func (n *Node) Leave(ctx context.Context) { n.keeper.Leave(ctx) }

// Container returns the id of a session's container on this node. holdfast.ErrNotFound.
func (n *Node) Container(key holdfast.SessionKey) (string, error) {
	i, err := n.sessions.Get(key)
	if err != nil {
		return "", err
	}
	if i.Owner.ContainerID == "" {
		return "", fmt.Errorf("session %s has no running container: %w", key, holdfast.ErrNotFound)
	}
	return i.Owner.ContainerID, nil
}

// listLimit bounds a question to the keeper of detached commands.
const listLimit = 2 * time.Second

// use returns the id of a session's container and keeps the session awake until release
// is called.
func (n *Node) use(key holdfast.SessionKey) (id string, release func(), err error) {
	if id, err = n.Container(key); err == nil {
		release, err = n.sessions.Use(key, holdfast.WokenByExec)
	}
	return id, release, err
}

// LastUse reports whether a detached command of the session runs, and when the last one
// ran: now, or its end. The zero time: none is known.
func (n *Node) LastUse(ctx context.Context, key holdfast.SessionKey) (last time.Time, running bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	list, err := n.keeper.List(ctx, key)
	for _, c := range list {
		if c.Running() {
			return time.Now(), true, nil
		}
		if c.EndedAt.After(last) {
			last = c.EndedAt
		}
	}
	return last, false, err
}

// Exec implements api.CommandService.
func (n *Node) Exec(ctx context.Context, key holdfast.SessionKey, e api.Exec) (int, error) {
	id, release, err := n.use(key)
	if err != nil {
		return 0, err
	}
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return n.engine.Exec(ctx, id, engine.Exec{
		Command: e.Command, TTY: e.TTY, Env: e.Env, Dir: e.Dir, User: e.User,
		Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr,
		Resize: sizes(ctx, e.Resize),
	})
}

// sizes passes terminal sizes on, in the engine's type, until ctx is done.
func sizes(ctx context.Context, in <-chan api.Size) <-chan engine.Size {
	if in == nil {
		return nil
	}
	out := make(chan engine.Size)
	go func() {
		for {
			select {
			case s := <-in:
				select {
				case out <- engine.Size{Rows: uint(s.Rows), Cols: uint(s.Cols)}:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// StartCommand implements api.CommandService.
func (n *Node) StartCommand(ctx context.Context, key holdfast.SessionKey, q api.ExecRequest) (holdfast.Command, error) {
	id, release, err := n.use(key)
	if err != nil {
		return holdfast.Command{}, err
	}
	defer release()
	size := engine.Size{Rows: 24, Cols: 80}
	if q.Size != nil && *q.Size != (api.Size{}) {
		size = engine.Size{Rows: uint(q.Size.Rows), Cols: uint(q.Size.Cols)}
	}
	return n.keeper.Start(ctx, commands.Request{
		Key: key, Container: id, Command: q.Command, TTY: q.TTY, Env: q.Env, Dir: q.Dir, User: q.User, Stdin: q.Stdin, Size: size, Hold: q.Hold,
	})
}

// Commands implements api.CommandService.
func (n *Node) Commands(ctx context.Context, key holdfast.SessionKey) ([]holdfast.Command, error) {
	return n.keeper.List(ctx, key)
}

// SignalCommand implements api.CommandService.
func (n *Node) SignalCommand(ctx context.Context, key holdfast.SessionKey, id string, sig syscall.Signal) error {
	err := n.keeper.Signal(ctx, key, id, sig)
	if errors.Is(err, engine.ErrUnsupported) {
		return &api.Error{Code: api.CodeBadRequest, Message: err.Error(), Advice: "`holdfast session exec` can run kill in the container"}
	}
	return err
}

// AttachCommand implements api.CommandService.
func (n *Node) AttachCommand(ctx context.Context, key holdfast.SessionKey, id string, q api.AttachRequest) (io.ReadWriteCloser, error) {
	stream, err := n.keeper.Attach(ctx, key, id, commands.Attach(q))
	if errors.Is(err, commands.ErrOffset) {
		return nil, &api.Error{Code: api.CodeBadRequest, Message: err.Error(), Advice: "`holdfast session commands` shows the bytes of each output"}
	}
	return stream, err
}
