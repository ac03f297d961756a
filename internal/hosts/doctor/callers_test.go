package doctor_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/platform/engine"
	"holdfast/test/lab/labtest"
)

// compile builds a C++ program of testdata without frame pointers.
func compile(t *testing.T, source string, libraries ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), source)
	args := append([]string{"-O2", "-fomit-frame-pointer", "-o", out, "testdata/" + source + "/main.cc"}, libraries...)
	msg, err := exec.CommandContext(t.Context(), "g++", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("g++ %q: %v (it needs g++ and libgoogle-glog-dev)\n%s", args, err, msg)
	}
	return out
}

// native starts a container with a program that uses this host's libraries, and returns its
// id.
func native(t *testing.T, api engine.Engine, name, program string) string {
	t.Helper()
	mounts := []engine.Mount{{Type: "bind", Source: program, Target: "/service", ReadOnly: true}}
	for _, dir := range []string{"/usr/lib", "/lib", "/lib64"} {
		from, err := filepath.EvalSymlinks(dir)
		if err != nil {
			t.Fatal(err)
		}
		mounts = append(mounts, engine.Mount{Type: "bind", Source: from, Target: dir, ReadOnly: true})
	}
	id, err := api.Create(t.Context(), engine.Spec{Name: name, Image: labtest.Busybox, Network: "none", Mounts: mounts, Command: []string{"/service", "/"}})
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

// A storm by a C++ program without frame pointers is found with the function that causes
// it.
func TestCallerWithoutFramePointers(t *testing.T) {
	api := labtest.Docker(t)
	id := native(t, api, "storm", compile(t, "storm"))
	c, err := api.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	labtest.PreferCPU(t, c.Pid)
	var r doctor.Report
	var f *doctor.Finding
	for range 5 { // with concurrent tests the logger has only a part of a CPU
		r = examine(t, doctor.Examination{Engine: api})
		if f = findContainer(r, "fadvise-storm", "storm"); f != nil {
			break
		}
	}
	if f == nil {
		t.Fatalf("no storm was found:\n%s", explain(r, "fadvise-storm", ""))
	}
	const caller = "shop::(anonymous namespace)::Log::Write"
	if !slices.ContainsFunc(f.Evidence, func(e rule.Evidence) bool { return e.What == "called by" && e.Found == caller }) {
		t.Errorf("the caller %s is missing: %+v, %q", caller, f.Evidence, f.Subject.User)
	}
	if path := f.Subject.Program(); len(path) == 0 || !slices.Contains(path, "shop::(anonymous namespace)::HandleRequest") {
		t.Errorf("the path through the program is %q", path)
	}
}

// The caller in a service that logs with glog has glog's own name. Debian's library is
// stripped: there the function, which the library does not export, has the library's name.
func TestGlog(t *testing.T) {
	api := labtest.Docker(t)
	want := map[string][]string{ // parts of names, from the call outwards
		native(t, api, "glog-inside", compile(t, "glogger", "-Wl,-Bstatic", "-lglog", "-lgflags", "-Wl,-Bdynamic", "-lunwind")): {
			"posix_fadvise", "google::(anonymous namespace)::LogFileObject::Write", "google::LogMessage::SendToLog", "shop::handle_request", "main"},
		native(t, api, "glog-library", compile(t, "glogger", "-lglog")): {
			"posix_fadvise", "[libglog.so", "google::LogMessage::SendToLog", "shop::handle_request", "main"},
	}
	for range 5 { // with concurrent tests a service has only a part of a CPU
		r := examine(t, doctor.Examination{Engine: api})
		for id, names := range want {
			if path := drainsOf(r, id); path != nil {
				inOrder(t, path, names)
				delete(want, id)
			}
		}
		if len(want) == 0 {
			return
		}
	}
	for id := range want {
		t.Errorf("in container %s no caller was seen", id)
	}
}

// drainsOf returns the path through the program in a container that drained the CPUs'
// batches, nil if none was seen.
func drainsOf(r doctor.Report, container string) []string {
	for _, f := range r.Facts {
		if f.Name == fact.DrainsBy && strings.Contains(f.Subject.Cgroup, container) && len(f.Subject.User) > 0 {
			return f.Subject.User
		}
	}
	return nil
}

// inOrder checks that names occur in a path, in their order.
func inOrder(t *testing.T, path, names []string) {
	t.Helper()
	left := path
	for _, name := range names {
		at := slices.IndexFunc(left, func(n string) bool { return strings.Contains(n, name) })
		if at < 0 {
			t.Errorf("%s is missing, or not in its place, in %q", name, path)
			return
		}
		left = left[at+1:]
	}
}
