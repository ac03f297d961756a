package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/platform/engine"
)

// accuracyRow is a host that the doctor examines: with a drill on it, or healthy.
type accuracyRow struct {
	name  string
	drill drill.Drill // the zero value on a healthy host
	// work is the healthy host's workload, run until ctx is done; nil is none.
	work func(ctx context.Context) error
}

// Names of the healthy hosts.
const (
	hostIdle    = "idle"
	hostBusy    = "busy"
	hostBooting = "booting"
)

func accuracyNames() []string {
	var names []string
	for _, d := range drill.All() {
		names = append(names, d.Name)
	}
	return append(names, hostIdle, hostBusy, hostBooting)
}

// rows returns the rows that the options select.
func (x *accuracyBench) rows() []accuracyRow {
	var rows []accuracyRow
	for _, d := range drill.All() {
		rows = append(rows, accuracyRow{name: d.Name, drill: d})
	}
	rows = append(rows,
		accuracyRow{name: hostIdle},
		accuracyRow{name: hostBusy, work: x.compile},
		accuracyRow{name: hostBooting, work: x.bootSessions})
	if len(x.o.Only) == 0 {
		return rows
	}
	var only []accuracyRow
	for _, name := range x.o.Only {
		for _, r := range rows {
			if r.name == name {
				only = append(only, r)
			}
		}
	}
	return only
}

// looking is called while a host's workload runs.
type looking func(expected) error

// drill runs the doctor while a drill runs. The drill is in a container if it can be:
// a neighbour needs a weight, which only its own control groups have.
func (x *accuracyBench) drill(ctx context.Context, d drill.Drill, look looking) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var looked error
	o := drill.Options{
		For: x.o.For + time.Minute, Dir: x.scratch, Worker: x.o.Worker, Groups: x.groups,
		Ready: func(at drill.Running) {
			looked = look(expected{rule: at.Rule, group: at.Group, container: at.Container})
			cancel()
		},
	}
	x.made.Add(1)
	if d.Name == "zombies" || d.Name == "pinned" {
		x.made.Add(int64(d.Size))
	}
	if d.Containers && d.Name != "neighbour" {
		o.Image, o.Engine = busyboxImage, x.boot.engine
	}
	err := drill.Run(ctx, d, o)
	return errors.Join(looked, err)
}

// settling is the time that a workload gets to start.
const settling = 3 * time.Second

// healthy runs the doctor on a host with a harmless workload.
func (x *accuracyBench) healthy(ctx context.Context, row accuracyRow, look looking) error {
	if row.work == nil {
		return look(expected{})
	}
	working, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- row.work(working) }()
	var err error
	select {
	case err = <-done: // it ends early only with an error
		done <- nil
	case <-time.After(settling):
		err = look(expected{})
	}
	stop()
	if worked := <-done; worked != nil && ctx.Err() == nil && !errors.Is(worked, context.Canceled) {
		err = errors.Join(err, fmt.Errorf("the host's work: %w", worked))
	}
	return errors.Join(err, ctx.Err())
}

// compile builds Go's standard library repeatedly in a container, with one compiler
// per CPU. On a machine without Go it compresses files instead.
func (x *accuracyBench) compile(ctx context.Context) error {
	s := engine.Spec{Name: "compile", Image: busyboxImage, Init: true, Network: "none"}
	if root, err := goRoot(ctx); err == nil {
		s.Mounts = []engine.Mount{{Type: "bind", Source: root, Target: "/go", ReadOnly: true}}
		s.Env = []string{"PATH=/go/bin:/bin", "GOROOT=/go", "HOME=/tmp", "GOCACHE=/tmp/cache", "GOTOOLCHAIN=local", "CGO_ENABLED=0"}
		s.Command = []string{"/bin/sh", "-c", fmt.Sprintf("while go build -a -p %d std; do rm -rf /tmp/cache; done", runtime.NumCPU())}
	} else {
		s.Mounts = []engine.Mount{{Type: "bind", Source: filepath.Clean(x.boot.lab.DataRoot()), Target: "/src", ReadOnly: true}}
		pack := "while :; do tar c /src 2>/dev/null | gzip >/tmp/$1; md5sum /tmp/$1; done"
		s.Command = []string{"/bin/sh", "-c", fmt.Sprintf("for i in $(seq %d); do sh -c '%s' pack $i & done; wait", runtime.NumCPU(), pack)}
	}
	id, err := x.boot.engine.Create(ctx, s)
	if err != nil {
		return err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_ = x.boot.engine.Remove(clean, id) // if this fails, it is removed with the engine
	}()
	if err := x.boot.engine.Start(ctx, id); err != nil {
		return err
	}
	code, err := x.boot.engine.Wait(ctx, id)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var log strings.Builder
	_ = x.boot.engine.Logs(ctx, id, engine.LogOptions{Tail: 5}, &log) // an error here does not matter
	return fmt.Errorf("the workload's container exited with code %d (%w): %s", code, errors.Join(err, errWorkEnded), log.String())
}

var errWorkEnded = errors.New("the workload must not end by itself")

// goRoot returns Go's directory on this machine.
func goRoot(ctx context.Context) (string, error) {
	path, err := exec.LookPath("go")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, "env", "GOROOT")
	cmd.Dir = "/"
	out, err := cmd.Output()
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(strings.TrimSpace(string(out)))
}

// boots is the number of sessions that boot concurrently.
const boots = 2

// bootSessions makes the agent boot and remove sessions, one after the other.
func (x *accuracyBench) bootSessions(ctx context.Context) error {
	run := time.Now().UnixNano()
	g, gctx := errgroup.WithContext(ctx)
	for lane := range boots {
		g.Go(func() error {
			for i := 0; gctx.Err() == nil; i++ {
				if err := x.bootOne(gctx, fmt.Sprintf("accuracy-%d-%d-%d", run, lane, i)); err != nil {
					return err
				}
			}
			return gctx.Err()
		})
	}
	err := g.Wait()
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return errors.Join(err, x.removeSessions(clean, ""))
}

// bootOne boots a session by a request at the gateway, then removes it.
func (x *accuracyBench) bootOne(ctx context.Context, key string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/s/%s/", x.boot.agents[0].gateway, key), nil)
	if err != nil {
		return err
	}
	res, err := x.boot.client.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<20)) // the body does not matter
	res.Body.Close()
	x.made.Add(1)
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("session %s: %s", key, res.Status)
	}
	return x.removeSessions(ctx, key)
}

// removeSessions removes the container of one session, or those of all.
func (x *accuracyBench) removeSessions(ctx context.Context, key string) error {
	list, err := x.boot.engine.List(ctx, map[string]string{"holdfast.session": key})
	for _, c := range list {
		err = errors.Join(err, x.boot.engine.Remove(ctx, c.ID))
	}
	return err
}
