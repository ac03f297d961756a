package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
)

// systemPath is where the daemon finds its runtime and firewall programs, also
// when a user's PATH lacks the sbin directories.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// findDaemon returns the path of dockerd, or of what is given.
func findDaemon(given string) (string, error) {
	candidates := []string{"dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd"}
	if given != "" {
		candidates = []string{given}
	}
	for _, name := range candidates {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", holdfast.WithHint(fmt.Errorf("no Docker engine is installed (%s not found)", candidates[0]),
		"apt-get install docker.io")
}

// daemon is a running engine's.
type daemon struct {
	name  string // of the program
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed when it was reaped
	err   error         // how it ended, valid after ended
}

// startDaemon starts a daemon with its output appended to the file log. It finds
// its programs in the directory path, if that is not "", before the system's.
func startDaemon(command, path string, args []string, log string) (*daemon, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(command, args...)
	// Nothing of the caller's environment changes the daemon (DOCKER_*,
	// *_PROXY).
	if path != "" {
		path += ":"
	}
	cmd.Env = []string{"PATH=" + path + systemPath, "HOME=/root", "TMPDIR=/tmp"}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command, err)
	}
	d := &daemon{name: filepath.Base(command), cmd: cmd, log: log, ended: make(chan struct{})}
	go func() {
		d.err = cmd.Wait()
		close(d.ended)
	}()
	return d, nil
}

func (d *daemon) pid() int { return d.cmd.Process.Pid }

func (d *daemon) running() bool {
	select {
	case <-d.ended:
		return false
	default:
		return true
	}
}

// errSlowContainerd means that dockerd gave up on its containerd, which it gives 15
// seconds: on a disk that others write to that may be too little.
var errSlowContainerd = errors.New("its containerd was too slow")

// waitReady returns when the daemon answers, has ended, or ctx is done.
func (d *daemon) waitReady(ctx context.Context, ping func(context.Context) error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; its last lines:\n%s", d.name, ctx.Err(), tail(d.log))
		case <-d.ended:
			said, err := tail(d.log), d.err
			if strings.HasSuffix(said, "timeout waiting for containerd to start") {
				err = errSlowContainerd
			}
			return fmt.Errorf("%s ended at its start: %w; its last lines:\n%s", d.name, err, said)
		case <-tick.C:
			if ping(ctx) == nil {
				return nil
			}
		}
	}
}

// stop ends the daemon with SIGTERM, after grace with SIGKILL.
func (d *daemon) stop(grace time.Duration) error {
	if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", d.name, err)
	}
	select {
	case <-d.ended:
		return nil
	case <-time.After(grace):
		return d.kill()
	}
}

func (d *daemon) kill() error {
	if err := d.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", d.name, err)
	}
	<-d.ended
	return nil
}

// tail returns the last 2 KiB of a file, as far as it can be read.
func tail(path string) string {
	const size = 2 << 10
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.Size() > size {
		if _, err := f.Seek(-size, io.SeekEnd); err != nil {
			return ""
		}
	}
	data, _ := io.ReadAll(io.LimitReader(f, size))
	return strings.TrimSpace(string(data))
}
