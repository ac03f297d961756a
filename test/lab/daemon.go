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

// systemPath is the PATH of the daemon. It has the runtime and firewall programs even if the
// user's PATH lacks the sbin directories.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// findDaemon returns the path of dockerd, or of the given program.
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

// daemon is the process of a running engine.
type daemon struct {
	name  string // of the program
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed when it is reaped
	err   error         // of its end, valid after ended
}

// startDaemon starts a daemon that appends its output to the file log. If path is not "",
// the daemon looks for its programs there first.
func startDaemon(command, path string, args []string, log string) (*daemon, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(command, args...)
	// The daemon does not inherit the caller's environment (DOCKER_*, *_PROXY).
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

// errSlowContainerd means that dockerd ended because its containerd did not start within 15
// seconds. On a busy disk it may take longer.
var errSlowContainerd = errors.New("its containerd was too slow")

// waitReady returns when the daemon answers or has ended, or when ctx is done.
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

// tail returns the last 2 KiB of a file, or the error.
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
