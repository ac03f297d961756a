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
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/child"
	"holdfast/internal/platform/linux/netns"
)

// ErrNoneStands reports that no standing keeper runs in a network namespace.
var ErrNoneStands = errors.New("no keeper stands by")

// helloLimit is how long a standing keeper may take to answer. On busy CPUs a process that
// lives may not run for a second or more.
const helloLimit = 3 * time.Second

// standingSocket returns the socket path of the standing keeper of the
// namespace at path.
func standingSocket(dir, path string) (string, error) {
	id, err := namespaceID(path)
	return filepath.Join(dir, id+".sock"), err
}

// StartStanding starts a standing keeper in the namespace of o and returns when
// it accepts connections. The keeper is prepared for no address yet and
// outlives its starter. Its socket stays in directory dir, which is created,
// for as long as it lives. Never start two for one namespace at once
// (LockInstall).
func StartStanding(ctx context.Context, dir string, o KeeperOptions) error {
	path, err := standingSocket(dir, o.Netns)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("start a standing keeper: %w", err)
	}
	cmd := child.Command(append(o.Argv[:len(o.Argv):len(o.Argv)], argStanding, path), keeperEnv()...)
	line, err := child.Start(cmd, unix.SOCK_STREAM, func() error { return netns.Do(o.Netns, cmd.Start) })
	if err != nil {
		return fmt.Errorf("start a standing keeper: %w", err)
	}
	defer line.Close()
	stop := context.AfterFunc(ctx, func() { _ = line.SetReadDeadline(time.Now()) })
	defer stop()
	said, err := io.ReadAll(io.LimitReader(line, maxMessage))
	if err == nil && len(said) > 0 {
		err = errors.New(string(said))
	}
	if err != nil {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // the error is that of the kill
		return fmt.Errorf("start a standing keeper: %w", err)
	}
	return cmd.Process.Release()
}

// Dial connects to the standing keeper in the namespace at path; "" is the
// current one. Error: ErrNoneStands.
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
	case a.Hello.Protocol != protocol:
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

// ErrOtherVersion reports that the standing keeper is another version of this
// program.
var ErrOtherVersion = errors.New("the standing keeper is of another version: `holdfast protect install --restore` replaces it")

// Dismiss ends a standing keeper of another version with SIGTERM, which all
// versions handle, and returns when it has ended. Dismiss is for the current
// network namespace, like ClearStanding and LockInstall.
func Dismiss(ctx context.Context, dir string) error {
	k, err := dial(ctx, dir, "", nil)
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

// ClearStanding removes the socket of a standing keeper that was killed. No
// standing keeper may run (LockInstall).
func ClearStanding(dir string) error {
	at, err := standingSocket(dir, "")
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
		// The process is alive because it is connected. If it has just died,
		// FindProcess fails.
		process, _ = os.FindProcess(pid)
	}
	k := &Keeper{process: process, standing: true, log: log}
	k.begin(line)
	return k, nil
}

// Installed returns what a standing keeper was prepared for at the time of
// Dial.
func (k *Keeper) Installed() []Installed { return k.installed }

// Install prepares a standing keeper for exactly these addresses.
func (k *Keeper) Install(ctx context.Context, ports []Installed) error {
	if _, err := k.ask(ctx, request{Op: opInstall, Installed: ports}); err != nil {
		return fmt.Errorf("tell the standing keeper: %w", err)
	}
	k.installed = ports
	return nil
}

// Standing returns the state of a standing keeper.
func (k *Keeper) Standing(ctx context.Context) (Standing, error) {
	a, err := k.ask(ctx, request{Op: opStatus})
	if err != nil {
		return Standing{}, fmt.Errorf("ask the standing keeper: %w", err)
	}
	return a.Standing, nil
}

// Quit ends a standing keeper. It returns when the keeper has ended, which is
// after the last hold, or when ctx ends.
func (k *Keeper) Quit(ctx context.Context) error {
	if _, err := k.ask(ctx, request{Op: opQuit}); err != nil && !errors.Is(err, ErrKeeperGone) {
		return fmt.Errorf("end the standing keeper: %w", err)
	}
	return k.awaitEnd(ctx)
}

// awaitEnd waits until a standing keeper that is ending has ended.
func (k *Keeper) awaitEnd(ctx context.Context) error {
	select {
	case <-k.conn.Ended():
		return nil
	case <-ctx.Done():
		_ = k.conn.Close()
		return fmt.Errorf("end the standing keeper: it waits for the end of a hold: %w", context.Cause(ctx))
	}
}

// LockInstall serializes changes of what is installed. The caller must call Unlock.
func LockInstall(ctx context.Context, dir string) ([]*Lock, error) {
	id, err := namespaceID("")
	if err != nil {
		return nil, err
	}
	l, err := lockFile(ctx, dir, id+"-install.lock", 0)
	if err != nil {
		return nil, fmt.Errorf("lock what is installed: %w", err)
	}
	return []*Lock{l}, nil
}
