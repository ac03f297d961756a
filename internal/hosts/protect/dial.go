package protect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/child"
	"holdfast/internal/platform/linux/netns"
)

// ErrNoneStands means that no keeper stands by in a network namespace.
var ErrNoneStands = errors.New("no keeper stands by")

// helloLimit is how long a standing keeper may take to answer.
const helloLimit = 500 * time.Millisecond

// standingSocket is where the standing keeper of the namespace at path listens.
func standingSocket(dir, path string) (string, error) {
	id, err := namespaceID(path)
	return filepath.Join(dir, id+".sock"), err
}

// StartStanding starts a keeper that stands by for protects in the namespace of o,
// and returns when one can be dialed. It is prepared for nothing yet, outlives its
// starter, and leaves its socket in directory dir, which is made, for as long as
// it lives. Two of a namespace must not be started at once (LockInstall).
func StartStanding(ctx context.Context, dir string, o KeeperOptions) error {
	path, err := standingSocket(dir, o.Netns)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("start a standing keeper: %w", err)
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start a standing keeper: %w", err)
	}
	defer ours.Close()
	cmd := child.Command(append(o.Argv[:len(o.Argv):len(o.Argv)], argStanding, path), keeperEnv()...)
	cmd.ExtraFiles = []*os.File{theirs} // keeperFD
	err = netns.Do(o.Netns, cmd.Start)
	theirs.Close() // the end of the pipe shows only when nobody else has it open
	if err != nil {
		return fmt.Errorf("start a standing keeper: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = ours.SetReadDeadline(time.Now()) })
	defer stop()
	said, err := io.ReadAll(io.LimitReader(ours, maxMessage))
	if err == nil && len(said) > 0 {
		err = errors.New(string(said))
	}
	if err != nil {
		_ = cmd.Process.Kill() // it may have ended
		return errors.Join(fmt.Errorf("start a standing keeper: %w", err), ignoreExit(cmd.Wait()))
	}
	return cmd.Process.Release()
}

// ignoreExit leaves out how a process ended that we have ended.
func ignoreExit(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil
	}
	return err
}

// Dial connects to the keeper that stands by in the namespace at path, "" being
// ours. ErrNoneStands.
func Dial(ctx context.Context, dir, path string, log *slog.Logger) (*Keeper, error) {
	k, err := dial(ctx, dir, path, log)
	if err != nil {
		return nil, fmt.Errorf("ask the standing keeper: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, helloLimit, errors.New("it does not answer"))
	defer cancel()
	a, err := k.ask(ctx, request{Op: opHello})
	switch {
	case err != nil:
	case a.Hello == nil || a.Hello.Protocol != protocol:
		err = ErrOtherVersion
	default:
		k.installed = a.Hello.Installed
		return k, nil
	}
	_ = k.conn.Close() // not Close, which would wait for it
	if err != nil && !errors.Is(err, ErrOtherVersion) {
		err = fmt.Errorf("ask the standing keeper (process %d): %w", k.Pid(), err)
	}
	return nil, err
}

// ErrOtherVersion means that the standing keeper is of another version of this
// program.
var ErrOtherVersion = errors.New("the standing keeper is of another version: `holdfast protect install --restore` replaces it")

// Dismiss ends a standing keeper of another version, and returns when it is gone.
// SIGTERM is understood by all.
func Dismiss(ctx context.Context, dir, path string) error {
	k, err := dial(ctx, dir, path, nil)
	if errors.Is(err, ErrNoneStands) {
		return nil
	} else if err != nil {
		return fmt.Errorf("end the standing keeper: %w", err)
	}
	if k.process != nil {
		err = k.process.Signal(unix.SIGTERM)
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Join(fmt.Errorf("end the standing keeper: %w", err), k.conn.Close())
	}
	return k.awaitEnd(ctx)
}

// ClearStanding removes the socket of a standing keeper that was killed. None may
// stand (LockInstall).
func ClearStanding(dir, path string) error {
	at, err := standingSocket(dir, path)
	if err != nil {
		return err
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of a standing keeper: %w", err)
	}
	return nil
}

func dial(ctx context.Context, dir, path string, log *slog.Logger) (*Keeper, error) {
	at, err := standingSocket(dir, path)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: helloLimit}
	c, err := d.DialContext(ctx, "unixpacket", at)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, ErrNoneStands
	} else if err != nil {
		return nil, err
	}
	line := c.(*net.UnixConn)
	pid, err := peer(line)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	var process *os.Process
	if pid > 0 {
		// It is alive, since it is connected; if it has just died, it is
		// not there.
		process, _ = os.FindProcess(pid)
	}
	k := &Keeper{process: process, standing: true, log: log}
	k.begin(line)
	return k, nil
}

// Installed is what a standing keeper is prepared for, as of Dial.
func (k *Keeper) Installed() []Installed { return k.installed }

// Install prepares a standing keeper for these addresses and no others.
func (k *Keeper) Install(ctx context.Context, ports []Installed) error {
	if _, err := k.ask(ctx, request{Op: opInstall, Installed: ports}); err != nil {
		return fmt.Errorf("tell the standing keeper: %w", err)
	}
	k.installed = ports
	return nil
}

// Standing asks a standing keeper how it is doing.
func (k *Keeper) Standing(ctx context.Context) (Standing, error) {
	a, err := k.ask(ctx, request{Op: opStatus})
	if err == nil && a.Standing == nil {
		err = errors.New("an answer without what was asked for")
	}
	if err != nil {
		return Standing{}, fmt.Errorf("ask the standing keeper: %w", err)
	}
	return *a.Standing, nil
}

// Quit ends a standing keeper, and returns when it is gone, which is when nothing
// is held any more, or when ctx ends.
func (k *Keeper) Quit(ctx context.Context) error {
	if _, err := k.ask(ctx, request{Op: opQuit}); err != nil && !errors.Is(err, ErrKeeperGone) {
		return fmt.Errorf("end the standing keeper: %w", err)
	}
	return k.awaitEnd(ctx)
}

// awaitEnd waits until a standing keeper that is ending is gone.
func (k *Keeper) awaitEnd(ctx context.Context) error {
	select {
	case <-k.conn.Ended():
		return nil
	case <-ctx.Done():
		_ = k.conn.Close()
		return fmt.Errorf("end the standing keeper: it waits for the end of a hold: %w", context.Cause(ctx))
	}
}

// LockInstall lets one at a time change what is installed in the namespace at
// path. The caller has to Unlock.
func LockInstall(ctx context.Context, dir, path string) ([]*Lock, error) {
	id, err := namespaceID(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock what is installed: %w", err)
	}
	l, err := lockFile(ctx, filepath.Join(dir, id+"-install.lock"), 0)
	if err != nil {
		return nil, fmt.Errorf("lock what is installed: %w", err)
	}
	return []*Lock{l}, nil
}
