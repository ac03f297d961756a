package unit

import (
	"context"
	"os"
	"path"
	"strings"
	"time"

	"holdfast/internal/platform/linux/proc"
)

const (
	// look is the interval at which systemd is asked for the state of a service; one
	// question takes about 0.2 ms.
	look = 20 * time.Millisecond
	// otherHold limits the wait for the end of the hold before.
	otherHold = 2 * time.Second
	// downLooks is how often in succession a service has to be found stopped and without a
	// job before it counts as stopped: before an automatic restart it is so for a moment.
	downLooks = 3
)

// Guard begins a hold for a restart or a reload of a service that waits for this process.
// It returns when the connections are held and the service is drained. For another job,
// such as a stop, it does nothing. An error means that the restart is not protected.
func Guard(ctx context.Context, m *Manager, service string) error {
	job, err := m.job(ctx, service)
	if err != nil {
		return err
	}
	switch {
	case job.kind == "restart", job.kind == "try-restart":
	// HAProxy tells systemd during its reload that it reloads, which reloads the helper
	// again. The job does not wait then.
	case job.kind == "reload" && job.waiting:
	default:
		return nil
	}
	if held(service, job.id) {
		return nil // by the other helper
	}
	state, _, err := m.Active(ctx, service)
	if err != nil {
		return err
	}
	if state != "active" && state != "reloading" && state != "deactivating" {
		return nil // it has crashed: there is no listener to hold
	}
	hold := prefixHold + service
	idle, err := m.await(ctx, hold)
	if err != nil {
		return err
	}
	if !idle {
		return nil // that hold lasts until the service listens again
	}
	if job.kind == "reload" {
		if keeps, err := m.keeps(ctx, service); keeps || err != nil {
			return err
		}
	}
	if err := m.Start(ctx, hold); err != nil {
		return err
	}
	return noteHeld(service, job.id)
}

// await waits a short time for the end of a hold.
func (m *Manager) await(ctx context.Context, hold string) (idle bool, err error) {
	for end := time.Now().Add(otherHold); ; {
		state, _, err := m.Active(ctx, hold)
		if err != nil {
			return false, err
		}
		if state == "inactive" || state == "failed" {
			return true, nil
		}
		if time.Now().After(end) {
			return false, nil
		}
		if err := pause(ctx, look); err != nil {
			return false, err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Job is a restart or a reload by systemd. It implements protect.Job.
type Job struct {
	Manager *Manager
	Service string
	// Held lets systemd go on with the job.
	Held func() error
}

// Name returns the name of the service.
func (j *Job) Name() string { return j.Service }

// Begin implements protect.Job.
func (j *Job) Begin() error { return j.Held() }

// Follow implements protect.Job. The new server runs when the job is over, or when the
// service's main process counts as started: with Type=notify when it has said so. The
// service's later commands (ExecStartPost=) may connect to it.
func (j *Job) Follow(ctx context.Context, done func()) (down bool, err error) {
	before, err := j.Manager.invocation(ctx, j.Service)
	if err != nil {
		return false, err
	}
	over, stopped, first := false, 0, uint32(0)
	for stopped < downLooks {
		state, job, err := j.Manager.Active(ctx, j.Service)
		if err != nil {
			return false, err
		}
		if first == 0 {
			first = job
		}
		// Another job is a later one, which waits until this hold has ended.
		if !over && (job == 0 && state != "activating" || job != first || j.started(ctx, before)) {
			over = true
			done()
		}
		if job == 0 && (state == "failed" || state == "inactive") {
			stopped++
		} else {
			stopped = 0
		}
		if err := pause(ctx, look); err != nil {
			return false, err
		}
	}
	return true, nil
}

// started reports whether the main process of another start than the one before counts as
// started.
func (j *Job) started(ctx context.Context, before string) bool {
	sub, err := j.Manager.text(ctx, j.Service, "SubState")
	if err != nil || sub != "running" && sub != "start-post" {
		return false
	}
	now, err := j.Manager.invocation(ctx, j.Service)
	return err == nil && now != before
}

// Overlaps reports whether the service's current job is a reload, in which the old server
// answers what it has accepted.
func Overlaps(ctx context.Context, m *Manager, service string) (bool, error) {
	job, err := m.job(ctx, service)
	return job.kind == "reload", err
}

// Restarting reports whether a service's current job is a restart.
func Restarting(ctx context.Context, m *Manager, service string) (bool, error) {
	job, err := m.job(ctx, service)
	return job.kind == "restart" || job.kind == "try-restart", err
}

// Own returns the service to which this process belongs; "": none.
func Own() (string, error) {
	b, err := proc.Host.Cgroup(os.Getpid())
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || f[1] != "" && f[1] != "name=systemd" {
			continue
		}
		if name := path.Base(f[2]); strings.HasSuffix(name, ".service") {
			return name, nil
		}
	}
	return "", nil
}
