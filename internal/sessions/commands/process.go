package commands

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/standby"
)

// listenerFD is the keeper's end of its socket: the first extra file of exec.Cmd. It
// accepts connections before the keeper runs.
const listenerFD = 3

// Main runs a command keeper in the process that a Client has started, and returns its
// exit code. dir is the agent's run directory. open connects to the agent's engine.
func Main(ctx context.Context, dir string, open func(context.Context) (engine.Engine, error), log *slog.Logger) int {
	term := make(chan os.Signal, 1)
	standby.Detach(listenerFD, term)
	if err := run(ctx, dir, open, term, log); err != nil {
		log.Error("the command keeper: " + err.Error())
		return 1
	}
	return 0
}

func run(ctx context.Context, dir string, open func(context.Context) (engine.Engine, error), term <-chan os.Signal, log *slog.Logger) error {
	f := os.NewFile(listenerFD, "listener")
	l, err := net.FileListener(f)
	f.Close()
	if err != nil {
		return fmt.Errorf("its socket: %w", err)
	}
	defer l.Close()
	e, err := open(context.WithoutCancel(ctx)) // SIGTERM ends ctx; the keeper may stay
	if err != nil {
		return err
	}
	defer e.Close()
	k := &keeper{path: filepath.Join(dir, socketName), engine: e, log: log}
	return k.serve(l, term)
}
