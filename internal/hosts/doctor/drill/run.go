package drill

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/deathsig"
)

// setupLimit bounds the time until the pathology exists.
const setupLimit = 3 * time.Minute

// Run creates the pathology and removes it after o.For, or when ctx is done. The latter
// is not an error once the pathology exists. Run first removes what earlier drills left.
// It needs root.
func Run(ctx context.Context, d Drill, o Options) (err error) {
	if err := o.defaults(d); err != nil {
		return err
	}
	if err := Sweep(ctx, o); err != nil {
		return fmt.Errorf("remove the remains of an earlier drill: %w", err)
	}
	s, err := newStage(o)
	if err != nil {
		return fmt.Errorf("prepare drill %s: %w", d.Name, err)
	}
	defer func() { err = errors.Join(err, s.remove(o)) }()
	var acts []runningPart
	defer func() {
		for _, a := range acts {
			err = errors.Join(err, a.stop())
		}
	}()
	ended := make(chan error, len(d.parts))
	for i := range d.parts {
		a, err := s.begin(ctx, d, d.parts[i], o, ended)
		if err != nil {
			return fmt.Errorf("drill %s: start %s: %w", d.Name, d.parts[i].name, err)
		}
		acts = append(acts, a)
	}
	fmt.Fprintf(o.Progress, "creating the pathology: %s\n", d.Short)
	if err := s.waitReady(ctx, d, ended); err != nil {
		return fmt.Errorf("drill %s: %w", d.Name, err)
	}
	r := Running{Drill: d.Name, Rule: d.Rule, Group: acts[0].group, Container: acts[0].container, For: o.For}
	fmt.Fprintf(o.Progress, "the pathology exists for %v: expect %s, by %s\n", o.For, d.Rule, cmp.Or(r.Container, r.Group))
	if o.Ready != nil {
		o.Ready(r)
	}
	timer := time.NewTimer(o.For)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case err := <-ended:
		return fmt.Errorf("drill %s ended too early: %w", d.Name, err)
	}
	fmt.Fprintln(o.Progress, "removing the pathology")
	return nil
}

// runningPart is a part of a drill that runs.
type runningPart struct {
	group, container string
	stop             func() error
}

// begin starts a part in a group or container of its own. It sends an error to ended if
// the part ends too early.
func (s *stage) begin(ctx context.Context, d Drill, p part, o Options, ended chan<- error) (runningPart, error) {
	dir := filepath.Join(s.dir, p.name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return runningPart{}, err
	}
	t := Task{Drill: d.Name, Part: p.name, Dir: dir, Size: o.Size, For: min(MaxFor, o.For+setupLimit)}
	if o.Image != "" {
		return s.container(ctx, p, t, o, ended)
	}
	group, dirs, err := s.makeGroup(o.Groups, p)
	if err != nil {
		return runningPart{}, err
	}
	t.Join = dirs
	if d.Name == zombiesName || d.Name == pinnedName {
		if t.Join, t.Tree, err = s.memoryTree(o.Groups, group, dirs); err != nil {
			return runningPart{}, err
		}
	}
	task, err := json.Marshal(t)
	if err != nil {
		return runningPart{}, err
	}
	return startWorker(append(append([]string{}, o.Worker...), string(task)), group, p, ended)
}

// startWorker starts a process that dies with this one.
func startWorker(argv []string, group string, p part, ended chan<- error) (runningPart, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.namespace {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNET
	}
	if p.mounts {
		cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNS
	}
	child, err := deathsig.Start(cmd, unix.SIGKILL)
	if err != nil {
		return runningPart{}, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := <-child; err != nil {
			ended <- fmt.Errorf("%w: %s", err, strings.TrimSpace(complaint.String()))
		} else {
			ended <- errors.New("its process ended")
		}
	}()
	return runningPart{group: group, stop: func() error {
		err := cmd.Process.Kill()
		<-done
		if errors.Is(err, os.ErrProcessDone) {
			return nil
		}
		return err
	}}, nil
}

// waitReady waits until the pathologies of all parts exist.
func (s *stage) waitReady(ctx context.Context, d Drill, ended <-chan error) error {
	limit := time.NewTimer(setupLimit)
	defer limit.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		missing := 0
		for _, p := range d.parts {
			if _, err := os.Stat(filepath.Join(s.dir, p.name, readyFile+p.name)); err != nil {
				missing++
			}
		}
		if missing == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return fmt.Errorf("the pathology did not exist within %v", setupLimit)
		}
	}
}
