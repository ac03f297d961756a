package job_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/job"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/test/lab/labtest"
	"holdfast/test/lab/registry"
)

// web is a service that serves its run's index on port 80.
func web(name string) job.Image {
	i := busybox(name)
	i.Command = []string{"sh", "-c", "mkdir /www && echo $SAYS run $HOLDFAST_JOB_INDEX > /www/index.html && exec httpd -f -p 80 -h /www"}
	i.Env = map[string]string{"SAYS": name}
	i.Ready = &job.Ready{Port: 80, HTTP: "/"}
	return i
}

// Two parallel runs, each with two services on the same port: every primary container
// reaches its own services by name. A step sees the files of the step before. No object
// is left.
func TestServicesByName(t *testing.T) {
	b := newBed(t)
	primary := busybox("")
	primary.Env = map[string]string{"GREETING": "hello"}
	primary.WorkDir = "/tmp"
	j := job.Job{Parallelism: 2, Images: []job.Image{primary, web("one"), web("two")}, Steps: []job.Step{
		{Run: "wget -qO- http://one/ http://two/ > got"},
		{Run: "pwd; cat got; echo $GREETING $HOLDFAST_JOB_TOTAL; hostname"},
		{Command: []string{"sh", "-c", "echo to errors >&2"}},
	}}
	res, err := b.run(t.Context(), j)
	if err != nil || res.ExitCode != 0 || len(res.Runs) != 2 || len(res.Runs[1].Steps) != 3 {
		t.Fatalf("%+v, %v", res, err)
	}
	got := slices.Sorted(strings.Lines(b.out.String()))
	var want []string
	for _, line := range []string{"/tmp", "one run %d", "two run %d", "hello 2", "primary"} {
		for run := range 2 {
			if strings.Contains(line, "%d") {
				want = append(want, fmt.Sprintf("%d | "+line+"\n", run, run))
			} else {
				want = append(want, fmt.Sprintf("%d | %s\n", run, line))
			}
		}
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("output %q, want %q", got, want)
	}
	if got := slices.Sorted(strings.Lines(b.errs.String())); !slices.Equal(got, []string{"0 | to errors\n", "1 | to errors\n"}) {
		t.Errorf("errors %q", got)
	}
	if len(res.Spinups) != 6 || len(b.records) != 6 {
		t.Errorf("%d spin-ups, %d recorded", len(res.Spinups), len(b.records))
	}
	for i, s := range res.Spinups {
		_, ready := s.Times[spinup.Ready]
		if s.Run != i/3 || s.Alias != []string{"primary", "one", "two"}[i%3] || s.Outcome != spinup.OK || s.Job != res.Job ||
			s.Times[spinup.Create] <= 0 || s.Times[spinup.Start] <= 0 || ready != (i%3 > 0) || !s.Pull.Cached || s.Kind != spinup.ForRun {
			t.Errorf("%+v", s)
		}
	}
	for _, want := range []string{"busybox:latest: image was in the cache", "one: time to create container: ", "two: time until container was ready: ", "primary: time to start container: ", "two: using image busybox:latest", "primary: time to start containers: "} {
		if !strings.Contains(b.told(), want) {
			t.Errorf("no %q in\n%s", want, b.told())
		}
	}
}

// The exit code is that of the first failed step. Later steps do not run.
func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		name  string
		steps []job.Step
		code  int
		ran   int
	}{
		{"fails", []job.Step{{Run: "true"}, {Run: "exit 3"}, {Run: "echo never"}}, 3, 2},
		{"first line of several fails", sh("false\necho never"), 1, 1},
		{"killed", sh("kill -9 $$"), 137, 1},
		{"not found", []job.Step{{Command: []string{"no-such-program"}}, {Run: "echo never"}}, 127, 1},
		{"not executable", []job.Step{{Command: []string{"/etc"}}}, 126, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			res, err := b.run(t.Context(), job.Job{Images: []job.Image{busybox("")}, Steps: c.steps})
			if err != nil || res.ExitCode != c.code || len(res.Runs) != 1 || len(res.Runs[0].Steps) != c.ran || strings.Contains(b.out.String(), "never") {
				t.Errorf("%+v, %v\n%s%s", res, err, &b.out, &b.errs)
			}
		})
	}
}

// One of several runs fails. The others continue, and the failed run determines the exit
// code.
func TestOneRunFails(t *testing.T) {
	b := newBed(t)
	res, err := b.run(t.Context(), job.Job{Parallelism: 3, Images: []job.Image{busybox("")}, Steps: []job.Step{
		{Run: "test $HOLDFAST_JOB_INDEX != 1 || exit 5"}, {Run: "echo done"},
	}})
	if err != nil || res.ExitCode != 5 || res.Runs[0].ExitCode != 0 || res.Runs[1].ExitCode != 5 || res.Runs[2].ExitCode != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if got := slices.Sorted(strings.Lines(b.out.String())); !slices.Equal(got, []string{"0 | done\n", "2 | done\n"}) {
		t.Errorf("%q", got)
	}
}

// The error of a container that does not start has the container, the phase and a hint.
// The container is recorded as failed. The other containers are not recorded as successes
// of a job.
func TestCannotComeUp(t *testing.T) {
	r := startRegistry(t)
	long := time.Minute
	for _, c := range []struct {
		name  string
		image job.Image
		pull  job.Policy
		want  string
		phase spinup.Phase
		cause spinup.Cause
		log   string
		hint  bool
	}{
		{name: "no such image", image: job.Image{Name: "db", Image: r.Host() + "/no/such:1"}, want: "db: ", cause: spinup.NoImage, hint: true},
		{name: "bad image", image: job.Image{Name: "db", Image: "Not:A:Name"}, want: "db: ", cause: spinup.BadName, hint: true},
		{name: "never pulled", image: job.Image{Name: "db", Image: r.Host() + "/no/such:1"}, pull: job.PullNever, want: "no such image", cause: spinup.NoImage, hint: true},
		{name: "create fails", image: job.Image{Name: "db", Image: labtest.Busybox, Mounts: []job.Mount{{Type: "bind", Source: "/no/such/dir", Target: "/x"}}},
			want: "/no/such/dir", phase: spinup.Create, cause: spinup.Other},
		{name: "start fails", image: job.Image{Name: "db", Image: labtest.Busybox, Command: []string{"/no/such/program"}},
			want: "/no/such/program", phase: spinup.Start, cause: spinup.Other},
		{name: "start fails, by name", image: job.Image{Name: "db", Image: labtest.Busybox, Command: []string{"no-such-program"}},
			want: "no-such-program", phase: spinup.Start, cause: spinup.Other},
		{name: "ends too early", image: job.Image{Name: "db", Image: labtest.Busybox, Command: []string{"sh", "-c", "echo no password is set; exit 3"}, Ready: &job.Ready{Port: 1, Timeout: holdfast.Millis(long)}},
			want: "exited before it was ready, with exit code 3", phase: spinup.Ready, cause: spinup.Other, log: "no password is set\n"},
		{name: "never ready", image: job.Image{Name: "db", Image: labtest.Busybox, Ready: &job.Ready{Command: []string{"false"}, Timeout: holdfast.Millis(5 * time.Second)}},
			want: "not ready after 5s: the ready command exits with code 1", phase: spinup.Ready, cause: spinup.Other, hint: true},
		{name: "ready command that does not end", image: job.Image{Name: "db", Image: labtest.Busybox, Ready: &job.Ready{Command: []string{"sleep", "60"}, Timeout: holdfast.Millis(time.Second)}},
			want: "not ready after 1s: its first check has not ended", phase: spinup.Ready, cause: spinup.Other, hint: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			res, err := b.run(t.Context(), job.Job{Pull: c.pull, Images: []job.Image{busybox(""), c.image}, Steps: sh("echo never")})
			var failed *job.ContainerError
			if !errors.As(err, &failed) || failed.Name != "db" || failed.Phase != c.phase || failed.Log != c.log || !strings.Contains(err.Error(), c.want) ||
				(holdfast.HintOf(err) != "") != c.hint {
				t.Errorf("%v (phase %q, log %q, hint %q)", err, failed.Phase, failed.Log, holdfast.HintOf(err))
			}
			if strings.Contains(b.out.String(), "never") || len(res.Runs) > 0 {
				t.Errorf("steps ran: %+v", res)
			}
			var found bool
			for _, r := range b.records {
				if r.Image != c.image.Image || r.Outcome == spinup.OK || r.Outcome == spinup.Stopped {
					continue
				}
				found = true
				if r.Cause != c.cause || r.Error == "" || c.phase != "" && r.Failed != c.phase {
					t.Errorf("recorded as %+v", r)
				}
			}
			if !found || len(b.records) != 2 {
				t.Errorf("no failure among the %d records", len(b.records))
			}
		})
	}
}

// If a service is removed during the wait for it, the wait ends.
func TestServiceRemoved(t *testing.T) {
	b := newBed(t)
	b.onEvent = func(e job.Event) {
		if e.Name != "db" || !strings.HasPrefix(e.Line, "time to start container") {
			return
		}
		list, err := b.docker.List(context.Background(), map[string]string{job.LabelName: "db"})
		if err != nil || len(list) != 1 {
			t.Errorf("%+v, %v", list, err)
			return
		}
		if err := b.docker.Remove(context.Background(), list[0].ID); err != nil {
			t.Error(err)
		}
	}
	db := busybox("db")
	db.Ready = &job.Ready{Command: []string{"false"}, Timeout: holdfast.Millis(time.Hour)}
	_, err := b.run(t.Context(), job.Job{Images: []job.Image{busybox(""), db}, Steps: sh("echo never")})
	var failed *job.ContainerError
	if !errors.As(err, &failed) || failed.Name != "db" || failed.Phase != spinup.Ready || !strings.Contains(err.Error(), "it was removed") {
		t.Errorf("%v", err)
	}
}

// A local image of another platform than the job's is not run.
func TestPlatform(t *testing.T) {
	b := newBed(t)
	j := job.Job{Platform: "linux/mips64", Pull: job.PullNever, Images: []job.Image{busybox("")}, Steps: sh("echo ran")}
	_, err := b.run(t.Context(), j)
	var failed *job.ContainerError
	if !errors.As(err, &failed) || failed.Phase != spinup.Create || holdfast.HintOf(err) == "" || b.records[0].Cause != spinup.NoPlatform {
		t.Errorf("%v, hint %q, recorded as %+v", err, holdfast.HintOf(err), b.records)
	}
	j.Platform = "linux/" + runtime.GOARCH
	if res, err := b.run(t.Context(), j); err != nil || res.ExitCode != 0 || b.out.String() != "ran\n" {
		t.Errorf("of this machine's: %q, %+v, %v", &b.out, res, err)
	}
}

// An image without a program that keeps the primary container running.
func TestPrimaryCannotIdle(t *testing.T) {
	b := newBed(t)
	images := []job.Image{{Image: labtest.TestServer}}
	_, err := b.run(t.Context(), job.Job{Images: images, Steps: []job.Step{{Command: []string{"/program"}}}})
	if err == nil || !strings.Contains(holdfast.HintOf(err), "command:") {
		t.Errorf("%v, hint %q", err, holdfast.HintOf(err))
	}
	images[0].Command = []string{"/program"}
	res, err := b.run(t.Context(), job.Job{Images: images, Steps: []job.Step{{Command: []string{"/no"}}}})
	if err != nil || res.ExitCode != 127 {
		t.Errorf("with a command of its own: %+v, %v", res, err)
	}
}

// lateEngine says for the first looks at a container that has exited that it runs.
type lateEngine struct {
	job.Engine
	looks atomic.Int32
}

func (e *lateEngine) Inspect(ctx context.Context, id string) (engine.Container, error) {
	c, err := e.Engine.Inspect(ctx, id)
	if err == nil && !c.Running() && e.looks.Add(-1) >= 0 {
		c.State = "running"
	}
	return c, err
}

// The engine of a busy host notices late that the primary container has exited.
func TestEngineNoticesLate(t *testing.T) {
	b := newBed(t)
	late := &lateEngine{Engine: b.Engine}
	late.looks.Store(20)
	b.Engine = late
	_, err := b.run(t.Context(), job.Job{Images: []job.Image{busybox("")}, Steps: sh("kill -9 1; kill -TERM 1; sleep 60")})
	var failed *job.ContainerError
	if !errors.As(err, &failed) || !strings.Contains(err.Error(), "has exited") || late.looks.Load() >= 0 {
		t.Errorf("%v; %d looks left", err, late.looks.Load())
	}
}

// If a service is stopped during a job, the whole job ends.
func TestStopped(t *testing.T) {
	b := newBed(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.Stdout = writerFunc(func(p []byte) (int, error) {
		cancel()
		return len(p), nil
	})
	one := busybox("")
	one.Mounts = []job.Mount{{Type: "volume", Target: "/anonymous"}}
	res, err := b.run(ctx, job.Job{Parallelism: 2, Images: []job.Image{one, web("web")}, Steps: sh("echo begun; sleep inf")})
	if !errors.Is(err, context.Canceled) || errors.Is(err, job.ErrLeft) || len(res.Spinups) != 4 || len(b.records) != 4 {
		t.Errorf("%+v, %v", res, err)
	}
	// Before anything is there, too.
	b = newBed(t)
	res, err = b.run(ctx, job.Job{Images: []job.Image{busybox(""), web("web")}, Steps: sh("echo never")})
	if !errors.Is(err, context.Canceled) || len(res.Runs) > 0 {
		t.Errorf("%+v, %v", res, err)
	}
	for _, r := range b.records {
		if r.Outcome != spinup.Stopped {
			t.Errorf("recorded as %+v", r)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A container starts while the image of another container is still being pulled. The
// registry holds the bytes of that image back until then.
func TestCreatesOverlapPulls(t *testing.T) {
	b := newBed(t)
	r := startRegistry(t)
	push(t, r, "held:1", 1, 1000, registry.Layer{Seed: 1, Size: 1 << 20})
	proxy, err := registry.StartProxy(r)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Stop()
	hold := make(chan struct{})
	proxy.Set(registry.Faults{Hold: hold, HoldAfter: 100})
	var ready, released bool
	b.onEvent = func(e job.Event) {
		if e.Name == "web" && strings.HasPrefix(e.Line, "time until container was ready") && !released {
			ready, released = true, true
			close(hold)
		}
	}
	held := job.Image{Name: "held", Image: proxy.Host() + "/held:1"}
	res, err := b.run(t.Context(), job.Job{Images: []job.Image{busybox(""), held, web("web")}, Steps: sh("wget -qO- http://web/")})
	if !released {
		close(hold) // or the proxy does not end
	}
	if err != nil || !ready || b.out.String() != "web run 0\n" {
		t.Errorf("%+v, %v\n%s", res, err, b.told())
	}
}

// With any parallelism the layers of an image are requested once, and one container has
// their bytes.
func TestPulledOnce(t *testing.T) {
	b := newBed(t)
	r := startRegistry(t)
	size := push(t, r, "once:1", 2, 1000, registry.Layer{Seed: 2, Size: 1 << 20}, registry.Layer{Seed: 3, Size: 2 << 20})
	one := job.Image{Image: r.Host() + "/once:1"}
	primary, service := one, one
	primary.Command, service.Name = []string{registry.Pause}, "service"
	res, err := b.run(t.Context(), job.Job{Parallelism: 3, Images: []job.Image{primary, service}, Steps: []job.Step{{Command: []string{registry.Done}}}})
	if err != nil || len(res.Spinups) != 6 {
		t.Fatalf("%+v, %v", res, err)
	}
	accesses, err := r.Accesses()
	if err != nil {
		t.Fatal(err)
	}
	asked := map[string]int{}
	for _, a := range accesses {
		if a.Method == "GET" && a.Blob() != "" && a.Bytes > 0 {
			asked[a.Blob()]++
		}
	}
	if len(asked) != 4 { // three layers and the configuration
		t.Errorf("%d blobs were fetched", len(asked))
	}
	for blob, n := range asked {
		if n != 1 {
			t.Errorf("%s was fetched %d times", blob, n)
		}
	}
	var sum int64
	for i, s := range res.Spinups {
		sum += s.Pull.Download.Bytes
		if s.Pull.Joined != (i > 0) || s.Pull.Cached || !s.Pull.Done {
			t.Errorf("%d: %+v", i, s.Pull)
		}
	}
	if sum != size {
		t.Errorf("%d bytes are recorded, the image has %d", sum, size)
	}
	// Now it is there.
	res, err = b.run(t.Context(), job.Job{Images: []job.Image{primary}, Steps: []job.Step{{Command: []string{registry.Done, "x"}}}})
	if err != nil || res.ExitCode != 1 || !res.Spinups[0].Pull.Cached {
		t.Errorf("%+v, %v", res, err)
	}
}

// A step's input, and a mount.
func TestInput(t *testing.T) {
	b := newBed(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("mounted\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	released := 0
	b.Attach = func() (job.Input, error) {
		return job.Input{Stdin: strings.NewReader("typed\n"), Release: func() { released++ }}, nil
	}
	one := busybox("")
	one.Mounts = []job.Mount{{Type: "bind", Source: dir, Target: "/data", ReadOnly: true}}
	res, err := b.run(t.Context(), job.Job{Images: []job.Image{one}, Steps: sh("cat; cat /data/file; touch /data/x 2>/dev/null || echo read-only")})
	if err != nil || res.ExitCode != 0 || b.out.String() != "typed\nmounted\nread-only\n" || released != 1 {
		t.Errorf("%q, %+v, %v", &b.out, res, err)
	}
	// Of several, none has it.
	for _, j := range []job.Job{
		{Images: []job.Image{one}, Steps: append(sh("cat"), sh("true")...)},
		{Images: []job.Image{one}, Steps: sh("cat"), Parallelism: 2},
	} {
		b.out.Reset()
		if _, err := b.run(t.Context(), j); err != nil || b.out.Len() > 0 || released != 1 {
			t.Errorf("%q, %v", &b.out, err)
		}
	}
}

// slowKeeper saves no record before the job's containers are removed.
type slowKeeper struct {
	*bed
	kept int
}

func (k *slowKeeper) Record(_ context.Context, records ...spinup.Record) error {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		left, err := k.docker.List(context.Background(), map[string]string{job.LabelJob: records[0].Job})
		if err != nil {
			return err
		}
		if len(left) == 0 {
			k.kept += len(records)
			return nil
		}
	}
	return errors.New("containers go on while their records are kept")
}

// The removal of a job's containers does not wait for their records.
func TestRecordedAfterTheEnd(t *testing.T) {
	b := newBed(t)
	k := &slowKeeper{bed: b}
	b.Recorder = k
	res, err := b.run(t.Context(), job.Job{Parallelism: 2, Images: []job.Image{busybox("")}, Steps: sh("true")})
	if err != nil || res.ExitCode != 0 || k.kept != 2 {
		t.Errorf("%d records kept, %+v, %v", k.kept, res, err)
	}
}

// The objects of a killed process are removed. The objects of a live process stay, and so
// does a container with a job's labels from its image, which was committed from a job's
// container.
func TestSweep(t *testing.T) {
	b := newBed(t)
	dead := b.Owner
	dead.Start++
	make1 := func(id string, owner job.Owner) string {
		labels := map[string]string{job.LabelJob: id, job.LabelOwner: owner.String(), job.LabelIndex: "0"}
		network, err := b.docker.CreateNetwork(t.Context(), "holdfast-"+id+"-0", labels)
		if err != nil {
			t.Fatal(err)
		}
		c, err := b.docker.Create(t.Context(), engine.Spec{Name: "holdfast-" + id + "-0-primary", Image: labtest.Busybox, Network: network, Labels: labels})
		if err == nil {
			err = b.docker.Start(t.Context(), c)
		}
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	killed, alive := job.NewID(), job.NewID()
	make1(killed, dead)
	c := make1(alive, b.Owner)
	successor, err := b.docker.Create(t.Context(), engine.Spec{
		Name: "successor-of-" + killed, Image: labtest.Busybox, Labels: map[string]string{job.LabelJob: killed, job.LabelOwner: dead.String()},
	})
	if err != nil {
		t.Fatal(err)
	}
	n, err := job.Sweep(t.Context(), b.docker, b.Owner, b.Log)
	if err != nil || n != 1 {
		t.Errorf("%d jobs swept, %v", n, err)
	}
	if !b.inspect(c).Running() {
		t.Error("a living job's container does not run")
	}
	if err := job.Remove(t.Context(), b.docker, killed); err != nil {
		t.Error(err)
	}
	if b.inspect(successor).ID != successor {
		t.Error("a container that no job created was removed")
	}
	if err := b.docker.Remove(t.Context(), successor); err != nil {
		t.Error(err)
	}
	b.mustBeGone(killed)
	if n, err := job.Sweep(t.Context(), b.docker, b.Owner, b.Log); n != 0 || err != nil {
		t.Errorf("swept again: %d, %v", n, err)
	}
	if err := job.Remove(t.Context(), b.docker, alive); err != nil {
		t.Error(err)
	}
	b.mustBeGone(alive)
}
