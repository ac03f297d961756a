package protect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/netns"
)

// programs runs the program of a check of kind Exec: in the process that asked for the hold,
// because the program needs the environment of its user, and in the network namespace of the
// ports.
type programs struct {
	argv    []string
	netns   *os.File // nil: the current one
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// newPrograms checks that the program exists.
func newPrograms(argv []string, path string) (*programs, error) {
	found, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, commandError(argv[0], err)
	}
	p := &programs{argv: slices.Concat([]string{found}, argv[1:])}
	if path != "" { // the process that the path names may end before the program runs
		if p.netns, err = os.Open(path); err != nil {
			return nil, fmt.Errorf("open a network namespace: %w", err)
		}
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// close ends programs that run, and waits for that. A nil value needs none.
func (p *programs) close() {
	if p == nil {
		return
	}
	p.cancel()
	p.running.Wait()
	if p.netns != nil {
		p.netns.Close()
	}
}

// maxOutput limits the output of a program that is kept, in bytes.
const maxOutput = 4 << 10

// run runs the program once. It returns nil if its exit code is 0, and kills it at the end
// of ctx.
func (p *programs) run(ctx context.Context, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, execLimit)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	host, port := at.Addr().String(), strconv.Itoa(int(at.Port()))
	var argv []string
	for _, word := range p.argv[1:] {
		argv = append(argv, strings.NewReplacer("{host}", host, "{port}", port).Replace(word))
	}
	cmd := exec.CommandContext(ctx, p.argv[0], argv...)
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	// A death signal is sent when the thread ends that started the program.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second // for what keeps the output open
	path := ""
	if p.netns != nil {
		path = "/proc/self/fd/" + strconv.Itoa(int(p.netns.Fd()))
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := netns.Do(path, cmd.Run)
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%s: no end within %v", p.argv[0], execLimit)
	} else {
		err = fmt.Errorf("%s: %w", p.argv[0], err)
	}
	if said := oneLine(string(out.b)); said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// tail keeps the end of an output.
type tail struct{ b []byte }

func (t *tail) Write(b []byte) (int, error) {
	t.b = append(t.b, b...)
	t.b = bytes.Clone(t.b[max(0, len(t.b)-maxOutput):])
	return len(b), nil
}
