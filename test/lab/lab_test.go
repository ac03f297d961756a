package lab_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/test/lab"
	"holdfast/test/lab/echoserver"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		os.Exit(child(role))
	}
	os.Exit(labtest.Main(m))
}

// needRoot skips tests that start labs, with -short.
func needRoot(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a lab takes its time, and root")
	}
}

// nested runs this test binary as a separate program in a lab of its own. For that lab this
// lab is the host.
type nested struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Reader
}

func startNested(t *testing.T, role string, args ...string) *nested {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "HOLDFAST_LAB=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, childRole+"="+role)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n := &nested{cmd: cmd, stdin: stdin, lines: bufio.NewReader(stdout)}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill() // after a failed test
			_ = cmd.Wait()
		}
	})
	return n
}

// report reads the report of a nested lab.
func (n *nested) report(t *testing.T) report {
	t.Helper()
	line, err := n.lines.ReadBytes('\n')
	if err != nil {
		t.Fatalf("a nested lab ended before it was ready: %v", err)
	}
	var r report
	if err := json.Unmarshal(line, &r); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return r
}

// end waits until a nested lab has ended by itself, and returns its exit code.
func (n *nested) end(t *testing.T) int {
	t.Helper()
	if err := n.stdin.Close(); err != nil {
		t.Error(err)
	}
	return n.wait(t)
}

func (n *nested) wait(t *testing.T) int {
	t.Helper()
	if err := n.cmd.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Error(err)
	}
	return n.cmd.ProcessState.ExitCode()
}

func TestPassThrough(t *testing.T) {
	needRoot(t)
	n := startNested(t, roleEcho, "one", "two words")
	if _, err := io.WriteString(n.stdin, "through and through"); err != nil {
		t.Fatal(err)
	}
	if err := n.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(n.lines)
	if want := `["one" "two words"] through and through`; err != nil || string(out) != want {
		t.Errorf("output %q, %v, wanted %q", out, err, want)
	}
	if code := n.wait(t); code != 7 {
		t.Errorf("exit code %d, wanted 7", code)
	}
}

func TestSignals(t *testing.T) {
	needRoot(t)
	for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGTERM} {
		n := startNested(t, roleSignal)
		n.report(t)
		if err := n.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if code := n.wait(t); code != int(sig)+50 {
			t.Errorf("%v: exit code %d, wanted %d", sig, code, int(sig)+50)
		}
	}
	n := startNested(t, roleSuicide)
	if code := n.wait(t); code != 128+int(unix.SIGKILL) {
		t.Errorf("exit code after SIGKILL inside: %d", code)
	}
}

// A lab runs beside an engine with containers. Nothing that a user can see of that engine
// changes during and after it.
func TestNeighbour(t *testing.T) {
	person := labtest.Engine(t)
	for i := range 2 {
		runBusybox(t, person, fmt.Sprintf("person-%d", i))
	}
	before := look(t, person)

	n := startNested(t, roleEngine)
	r := n.report(t)
	if len(processesIn(t, r.PIDs)) < 5 {
		t.Errorf("processes in the nested lab: %v", processesIn(t, r.PIDs))
	}
	compare(t, "while a lab runs", before, look(t, person))
	if code := n.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	compare(t, "after a lab", before, look(t, person))
	gone(t, r)
	cleaned(t, r)
}

// After a SIGKILL of its outer process everything in a lab dies, no mount remains on the
// host, and the next lab removes the data.
func TestKilled(t *testing.T) {
	// These labs need a directory of their own. A lab of a concurrent test would remove
	// what the killed one leaves.
	t.Setenv("TMPDIR", t.TempDir())
	person := labtest.Private(t, lab.Options{})
	busybox, err := lab.Busybox()
	if err == nil {
		err = person.Import(t.Context(), busybox)
	}
	if err != nil {
		t.Fatal(err)
	}
	runBusybox(t, person, "person")
	before := look(t, person)

	n := startNested(t, roleEngine)
	r := n.report(t)
	if err := n.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Not cmd.Wait: it closes the input, and at its end a process that the kernel has not
	// killed yet would stop the lab in an orderly way.
	if _, err := n.cmd.Process.Wait(); err != nil {
		t.Fatal(err)
	}
	gone(t, r)
	compare(t, "after a killed lab", before, look(t, person))
	if _, err := os.Stat(r.Dir); err != nil {
		t.Errorf("the data of a killed lab is to be there for the next to remove: %v", err)
	}
	if len(cgroupsNamed(t, filepath.Base(r.Dir))) == 0 {
		t.Error("the cgroups of a killed lab are to be there for the next to remove")
	}

	next := startNested(t, roleEngine)
	second := next.report(t)
	cleaned(t, r)
	if _, err := os.Stat(person.DataRoot()); err != nil {
		t.Errorf("a lab removed the data of a living one: %v", err)
	}
	if code := next.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	cleaned(t, second)
	compare(t, "after the next lab", before, look(t, person))
}

// Two engines in one lab have containers at different addresses. They answer, also after the
// second engine has ended.
func TestTwoEngines(t *testing.T) {
	first := labtest.Engine(t)
	before := interfaces(t)
	second, err := lab.StartEngine(t.Context(), lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		if err := second.Stop(); err != nil {
			t.Error(err)
		}
	})
	defer stop()
	path := filepath.Join(t.TempDir(), "testserver")
	if err := labtest.BuildTestServer(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	img, err := lab.Binary(labtest.TestServer, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Import(t.Context(), img); err != nil {
		t.Fatal(err)
	}
	var urls []string
	for i, e := range []*lab.Engine{first, second} {
		api, err := docker.Open(t.Context(), docker.Config{Host: e.Host()})
		if err != nil {
			t.Fatal(err)
		}
		defer api.Close()
		session := fmt.Sprint("of engine ", i)
		id, err := api.Create(t.Context(), engine.Spec{Image: labtest.TestServer, Env: []string{"HOLDFAST_SESSION=" + session}})
		if err != nil {
			t.Fatal(err)
		}
		if e == first {
			defer func() {
				if err := api.Remove(context.Background(), id); err != nil {
					t.Error(err)
				}
			}()
		}
		if err := api.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		c, err := api.Inspect(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		urls = append(urls, "http://"+c.Addresses[0]+":8080/")
	}
	for i, url := range urls {
		if got, want := getReply(t, url).Session, fmt.Sprint("of engine ", i); got != want {
			t.Errorf("%s is %q, wanted %q", url, got, want)
		}
	}
	stop()
	if got := getReply(t, urls[0]).Session; got != "of engine 0" {
		t.Errorf("after the second engine has gone: %q", got)
	}
	// The one of the first engine's new container is additional. The kernel removes
	// that of a dead container with a delay.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		after := interfaces(t)
		if strings.Count(after, "\n") == strings.Count(before, "\n")+1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("interfaces before\n%s\nand after\n%s", before, after)
		}
	}
}

// A daemon ends and starts again in different ways. Without live restore the containers end
// with it.
func TestDeadDaemon(t *testing.T) {
	n := startNested(t, roleRestart)
	out, err := io.ReadAll(n.lines)
	if err != nil || string(out) != "exited\n" {
		t.Errorf("container after a restart without live restore: %q, %v", out, err)
	}
	if code := n.wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}

	e := labtest.Engine(t)
	id, api := runBusybox(t, e, "survivor")
	first, err := api.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	daemon := e.Pid()
	if err := e.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	second, err := api.Inspect(t.Context(), id)
	if err != nil || second.Pid != first.Pid || !second.Running() {
		t.Errorf("container after a restart with live restore: %+v, %v", second, err)
	}
	if e.Pid() == daemon || e.Pid() == 0 {
		t.Errorf("daemon was %d and is %d", daemon, e.Pid())
	}
	if err := errors.Join(e.Kill(), e.Kill(), e.StopDaemon()); err != nil || e.Pid() != 0 {
		t.Errorf("a daemon killed twice: pid %d, %v", e.Pid(), err)
	}
	if err := errors.Join(e.StartDaemon(t.Context()), e.StartDaemon(t.Context())); err != nil {
		t.Errorf("a daemon started twice: %v", err)
	}
}

func TestStartErrors(t *testing.T) {
	needRoot(t)
	others := os.TempDir() // other tests have labs there
	t.Setenv("TMPDIR", t.TempDir())
	left := func() (list []string) {
		for _, dir := range []string{os.TempDir(), "/run"} {
			found, err := filepath.Glob(filepath.Join(dir, "*holdfast-lab-*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range found {
				of := filepath.Join(others, strings.TrimPrefix(filepath.Base(path), "engine-of-"))
				if _, err := os.Stat(of); err != nil {
					list = append(list, path)
				}
			}
		}
		return list
	}
	before := left()
	_, err := lab.StartEngine(t.Context(), lab.Options{Dockerd: "/no/such/dockerd"})
	if err == nil || !strings.Contains(holdfast.HintOf(err), "apt-get install docker.io") {
		t.Errorf("no dockerd: %v, hint %q", err, holdfast.HintOf(err))
	}
	_, err = lab.StartEngine(t.Context(), lab.Options{Args: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("a daemon that does not start: %v", err)
	}
	_, err = lab.StartEngine(t.Context(), lab.Options{Dir: "/run"})
	if err == nil || !strings.Contains(holdfast.HintOf(err), "TMPDIR") {
		t.Errorf("a directory in memory: %v, hint %q", err, holdfast.HintOf(err))
	}
	for _, path := range left() {
		// Another lab removes its directory before the one in /run.
		if !slices.Contains(before, path) {
			poll.Until(t, path+" is removed", func() bool { _, err := os.Stat(path); return err != nil })
		}
	}
	if _, err := lab.Reenter(); err == nil {
		t.Error("a lab entered from inside: no error")
	}
	t.Setenv("HOLDFAST_LAB", "")
	if _, err := lab.StartEngine(t.Context(), lab.Options{}); err == nil {
		t.Error("an engine outside a lab: no error")
	}
}

func TestNeedsRoot(t *testing.T) {
	needRoot(t)
	t.Setenv("HOLDFAST_LAB", "")
	const unprivileged = 65534
	if err := unix.Setresuid(-1, unprivileged, -1); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setresuid(-1, 0, -1); err != nil {
			t.Fatal(err)
		}
	}()
	if _, err := lab.Reenter(); err == nil || !strings.Contains(holdfast.HintOf(err), "sudo") {
		t.Errorf("%v, hint %q", err, holdfast.HintOf(err))
	}
}

// The test server answers in a container. A dynamically linked program cannot be an image.
func TestImages(t *testing.T) {
	e := labtest.Engine(t)
	id, api := run(t, e, engine.Spec{
		Image: labtest.TestServer, Env: []string{"HOLDFAST_SESSION=alice", "HOLDFAST_EPOCH=5"},
	})
	c, err := api.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	reply := getReply(t, "http://"+c.Addresses[0]+":8080/a/b?c=d")
	if reply.Session != "alice" || reply.Epoch != "5" || reply.Path != "/a/b?c=d" || reply.Method != "GET" {
		t.Errorf("%+v", reply)
	}

	if _, err := lab.Binary("x", "/bin/bash"); err == nil || !strings.Contains(holdfast.HintOf(err), "CGO_ENABLED=0") {
		t.Errorf("an image of a dynamic program: %v", err)
	}
	if err := e.Import(t.Context(), lab.Image{Ref: "Bad Name"}); err == nil {
		t.Error("an image of a bad name: no error")
	}
	if err := e.Import(t.Context(), lab.Image{Ref: "x", Files: map[string]string{"/x": "/no/such/file"}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an image of a missing file: %v", err)
	}
}

// getReply retries until the server listens.
func getReply(t *testing.T, url string) echoserver.Reply {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		res, err := http.Get(url)
		if err == nil {
			defer http.DefaultClient.CloseIdleConnections()
			defer res.Body.Close()
			var reply echoserver.Reply
			if err := json.NewDecoder(res.Body).Decode(&reply); err != nil {
				t.Fatal(err)
			}
			return reply
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// run starts a container that is removed at the test's end.
func run(t *testing.T, e *lab.Engine, spec engine.Spec) (string, *docker.Engine) {
	t.Helper()
	api, err := docker.Open(t.Context(), docker.Config{Host: e.Host()})
	if err != nil {
		t.Fatal(err)
	}
	id, err := api.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The test's context has ended.
		if err := errors.Join(api.Remove(context.Background(), id), api.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := api.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return id, api
}

func runBusybox(t *testing.T, e *lab.Engine, name string) (string, *docker.Engine) {
	t.Helper()
	return run(t, e, engine.Spec{Name: name, Image: labtest.Busybox})
}

// compare reports the differences between two descriptions of a host.
func compare(t *testing.T, when string, before, after map[string]string) {
	t.Helper()
	for what, was := range before {
		if is := after[what]; is != was {
			t.Errorf("%s: %s were\n%s\nand are\n%s", when, what, was, is)
		}
	}
}
