package profile

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.MainOnDisk(m)) }

// recorder returns a recorder of this host.
func recorder(t *testing.T, api engine.Engine) Recorder {
	t.Helper()
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	return Recorder{Proc: proc.Host, Groups: groups, Engine: api, Hz: 199, For: 4 * time.Second}
}

// burner builds the test program for containers.
func burner(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "burner")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./testdata/burner")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// run starts a container until the test ends.
func run(t *testing.T, api engine.Engine, name, program string, command ...string) string {
	t.Helper()
	id, err := api.Create(t.Context(), engine.Spec{Name: name, Image: labtest.Busybox, Network: "none", Command: command,
		Mounts: []engine.Mount{{Type: "bind", Source: program, Target: "/burner", ReadOnly: true}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Remove(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
	if err := api.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return id
}

// of returns the samples of one container.
func of(p *Profile, id string) *Profile {
	mine := &Profile{Meta: p.Meta, Frames: p.Frames}
	for _, s := range p.Samples {
		if s.Task.ContainerID == id {
			mine.Samples = append(mine.Samples, s)
		}
	}
	return mine
}

// Each of several containers that use CPU in different ways is found under its name, with
// its function. The difference from the time before names them.
func TestContainers(t *testing.T) {
	_, api := labtest.Either(t)
	program := burner(t)
	r := recorder(t, api)
	before, err := r.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{
		"rec-user":    run(t, api, "rec-user", program, "/burner", "user"),
		"rec-fadvise": run(t, api, "rec-fadvise", program, "/burner", "fadvise"),
		"rec-shell":   run(t, api, "rec-shell", program, "sh", "-c", "while :; do /bin/stat /etc >/dev/null; done"),
		"rec-idle":    run(t, api, "rec-idle", program, "sleep", "inf"),
	}
	functions := map[string]string{"rec-user": "main.burnHere"}
	if runtime.GOARCH == "amd64" {
		ids["rec-made"] = run(t, api, "rec-made", program, "/burner", "made")
		functions["rec-made"] = "shop.Cart.total"
	}
	after, gone := recorded(t, r, api, program, ids["rec-fadvise"])
	if after.Meta.CPUs < 1 || after.Meta.Seconds < 3.9 || after.Meta.Kernel == "" || len(after.Meta.Gaps) > 0 {
		t.Errorf("%+v", after.Meta)
	}
	for name, id := range ids {
		s := Summarize(of(after, id), 1000)
		t.Logf("%s: %d samples, %.2f CPUs", name, s.Samples, s.CPUs)
		if name == "rec-idle" {
			if s.Samples > 20 {
				t.Errorf("the idle container was seen %d times", s.Samples)
			}
			continue
		}
		if s.Samples == 0 || s.Containers[0].Container != name || s.Containers[0].Image != labtest.Busybox || s.Containers[0].Command == "" {
			t.Errorf("%s: %+v", name, s.Containers)
			continue
		}
		if f := functions[name]; f != "" && (s.Functions[0].Name != f || s.Functions[0].CPUs < s.CPUs/2) {
			t.Errorf("%s is not the first function: %+v", f, s.Functions[:min(5, len(s.Functions))])
		}
	}
	if s := Summarize(of(after, ids["rec-fadvise"]), 1000); !slices.ContainsFunc(s.Kernel, func(p Path) bool {
		return p.Container == "rec-fadvise" && slices.Contains(p.Path, "ksys_fadvise64_64") && p.CPUs > s.CPUs/4
	}) {
		t.Errorf("the call is missing: %+v", s.Kernel)
	}
	shortLived(t, of(after, ids["rec-shell"]))
	if len(of(after, gone).Samples) == 0 {
		t.Errorf("no samples of the removed container %q", gone)
	}
	grewHere(t, Compare(before, after), ids)
}

// recorded records until a container has enough samples for a difference that is not chance: on a busy
// host it gets little CPU time. A recording takes 4 s, and up to 32 s then. It returns the id of a container that
// ran in the recording and was removed before its end.
func recorded(t *testing.T, r Recorder, api engine.Engine, program, id string) (*Profile, string) {
	t.Helper()
	for {
		gone := make(chan string, 1)
		r.Step = func(what string) {
			if strings.HasPrefix(what, "recording") {
				go func() { gone <- comeAndGo(t.Context(), api, program) }()
			}
		}
		p, err := r.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		removed := <-gone
		if of(p, id).Total() >= 60 || r.For >= 32*time.Second {
			return p, removed
		}
		r.For *= 2
	}
}

// comeAndGo runs a container for a short time and returns its id.
func comeAndGo(ctx context.Context, api engine.Engine, program string) string {
	id, err := api.Create(ctx, engine.Spec{Image: labtest.Busybox, Network: "none", Command: []string{"/burner", "user"},
		Mounts: []engine.Mount{{Type: "bind", Source: program, Target: "/burner", ReadOnly: true}}})
	if err != nil {
		return err.Error()
	}
	err = api.Start(ctx, id)
	time.Sleep(time.Second) // the time for which it uses CPU
	if err := errors.Join(err, api.Remove(ctx, id)); err != nil {
		return err.Error()
	}
	return id
}

// shortLived checks processes that live for a millisecond. They have names, except for a
// process from before the recording that ended before it was read.
func shortLived(t *testing.T, p *Profile) {
	t.Helper()
	pids, nameless, stat := make(map[int]bool), 0, false
	for _, s := range p.Samples {
		pids[s.Task.Pid] = true
		if s.Task.Comm == "" {
			nameless++
		}
		stat = stat || s.Task.Comm == "stat"
	}
	if len(pids) < 5 || nameless > 2 || !stat {
		t.Errorf("short-lived processes: %d seen, %d samples without a name, stat seen: %v", len(pids), nameless, stat)
	}
}

func grewHere(t *testing.T, d Diff, ids map[string]string) {
	t.Helper()
	for name := range ids {
		i := slices.IndexFunc(d.Containers, func(c Change) bool { return c.Container == name })
		if name != "rec-idle" && (i < 0 || d.Containers[i].Grew <= 0 || d.Containers[i].Good != 0) {
			t.Errorf("%s did not grow: %+v", name, d.Containers)
		}
	}
	if i := slices.IndexFunc(d.Kernel, func(c Change) bool {
		return c.Container == "rec-fadvise" && slices.Contains(c.Path, "ksys_fadvise64_64")
	}); i < 0 || d.Kernel[i].Grew <= 0 || d.Kernel[i].Chance {
		t.Errorf("the call is missing from the difference: %+v", d.Top(10).Kernel)
	}
	if err := d.WritePage(io.Discard); err != nil {
		t.Error(err)
	}
}

func TestOneContainer(t *testing.T) {
	_, api := labtest.Either(t)
	program := burner(t)
	id := run(t, api, "one-user", program, "/burner", "user")
	run(t, api, "one-other", program, "/burner", "user")
	r := recorder(t, api)
	r.For = time.Second
	for _, name := range []string{"one-user", id[:12]} {
		r.Container = name
		p, err := r.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Samples) == 0 || p.Meta.Container != name || len(of(p, id).Samples) != len(p.Samples) {
			t.Errorf("%d samples, %d of %s: %+v", len(p.Samples), len(of(p, id).Samples), name, p.Meta)
		}
	}
	r.Container = "one-missing"
	if _, err := r.Run(t.Context()); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("error %v", err)
	}
	// On a kernel that reports no ids of control groups, they are read from procfs.
	c, err := api.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	g := newGroups(r.Groups, false)
	if path := g.path(g.of(r.Proc, c.Pid)); fact.ContainerID(path) != id {
		t.Errorf("process %d is in %q", c.Pid, path)
	}
}

func TestNoEngine(t *testing.T) {
	labtest.Engine(t) // requires root
	r := recorder(t, nil)
	r.Engine, r.NoEngine, r.For = nil, errors.New("it is off"), time.Second
	p, err := r.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Meta.Gaps) != 1 || !strings.Contains(p.Meta.Gaps[0], "it is off") {
		t.Errorf("%q", p.Meta.Gaps)
	}
	r.Container = "web"
	if _, err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "it is off") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.Container, r.For = "", MaxFor
	r.Step = func(string) { cancel() }
	if _, err := r.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestValidate(t *testing.T) {
	for _, bad := range []Recorder{{For: 0}, {For: 2 * MaxFor}, {For: time.Minute, Hz: -1}, {For: time.Minute, Hz: 1000}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is accepted", bad)
		}
		if _, err := bad.Run(t.Context()); err == nil {
			t.Errorf("%+v runs", bad)
		}
	}
}

// A container is recorded from its first instruction: by its name, before it exists, and
// as what a command starts. It ends before the time is over, and so does the recording.
func TestFromStart(t *testing.T) {
	_, api := labtest.Either(t)
	program := burner(t)
	run(t, api, "start-other", program, "sh", "-c", "while :; do /bin/sleep 0.02; done") // is in no recording
	once := []string{"sh", "-c", "i=0; while [ $i -lt 300 ]; do /bin/stat /etc >/dev/null; i=$((i+1)); done"}
	for name, named := range map[string]bool{"start-named": true, "start-command": false} {
		r := recorder(t, api)
		r.For, r.Hz = time.Minute, 999
		r.Start = &Start{Within: time.Minute}
		started := make(chan struct{})
		begin := func() {
			defer close(started)
			run(t, api, name, program, once...)
		}
		if named {
			r.Container = name
			r.Step = func(what string) {
				if strings.HasPrefix(what, "waiting") {
					go begin()
				}
			}
		} else {
			r.Start.Command = func() (<-chan struct{}, error) {
				go begin()
				return started, nil
			}
		}
		p, err := r.Run(t.Context())
		<-started
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if p.Total() == 0 || p.Meta.Seconds <= 0 || p.Meta.Seconds > 55 {
			t.Errorf("%s: %d samples in %v s", name, p.Total(), p.Meta.Seconds)
		}
		if s := p.Samples[0].Task; !slices.ContainsFunc(p.Samples, func(s Sample) bool { return s.Task.Comm == "stat" }) {
			t.Errorf("%s: the work is missing: %+v", name, s)
		}
		for _, s := range p.Samples {
			// With a command, containers of other engines that start meanwhile are there, too.
			if s.Task.Container != name && (named || s.Task.Container != "") {
				t.Errorf("%s: a sample of %+v", name, s.Task)
			}
		}
		t.Logf("%s: %d samples in %.1f s", name, p.Total(), p.Meta.Seconds)
	}
	for want, s := range map[string]Recorder{
		"already runs": {Container: "start-other", Start: &Start{Within: time.Second}},
		"has started":  {Container: "start-never", Start: &Start{Within: time.Second}},
		"command ended": {Start: &Start{Within: time.Minute, Command: func() (<-chan struct{}, error) {
			ended := make(chan struct{})
			close(ended)
			return ended, nil
		}}},
		"no container is named": {Start: &Start{Within: time.Second}},
	} {
		r := recorder(t, api)
		r.Container, r.Start = s.Container, s.Start
		p, err := r.Run(t.Context())
		for range 20 {
			if err != nil || slices.ContainsFunc(p.Samples, func(s Sample) bool { return s.Task.Container != "" }) {
				break
			}
			p, err = r.Run(t.Context()) // a container of another engine started meanwhile, and was recorded
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// hangs is an engine that does not answer.
type hangs struct{}

func (hangs) List(ctx context.Context, _ map[string]string) ([]engine.Container, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A recording begins and ends although the engine hangs, and says that names may be missing.
func TestRecordsBesideAnEngineThatHangs(t *testing.T) {
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Recorder{Proc: proc.Host, Groups: groups, Engine: hangs{}, Hz: 99, For: time.Second}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(p.Meta.Gaps, " "), "name") {
		t.Errorf("the gaps are %q", p.Meta.Gaps)
	}
}
