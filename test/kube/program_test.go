package kube_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/replace"
	"holdfast/internal/hosts/kube/survey"
	"holdfast/test/kube/kubetest"
)

// user is a user at a shell with a kubeconfig.
type user struct {
	t          *testing.T
	kubeconfig string
}

func newUser(t *testing.T, s *kubetest.Server) user {
	t.Helper()
	shared.Program(t) // builds it before the time limits begin
	return user{t, s.Kubeconfig(t)}
}

// running is a command in the background.
type running struct {
	cmd      *exec.Cmd
	out, err bytes.Buffer
}

func (u user) start(args ...string) *running {
	u.t.Helper()
	r := &running{}
	r.cmd = exec.Command(shared.Program(u.t), args...)
	r.cmd.Env = append(os.Environ(), "KUBECONFIG="+u.kubeconfig)
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.err
	r.cmd.WaitDelay = 10 * time.Second // a process that holds its output longer is a failure
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { _ = r.cmd.Process.Kill() }) // an error: it has ended
	return r
}

// end waits for it and returns its exit code.
func (r *running) end() int {
	err := r.cmd.Wait()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		r.err.WriteString(err.Error())
		return -2
	}
	return 0
}

// run runs a command to its end and returns what it printed.
func (u user) run(want int, args ...string) (stdout, stderr string) {
	u.t.Helper()
	r := u.start(args...)
	if code := r.end(); code != want {
		u.t.Fatalf("holdfast %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), code, want, r.out.String(), r.err.String())
	}
	return r.out.String(), r.err.String()
}

func TestClusterNodes(t *testing.T) {
	s := cluster(t)
	s.Node(t, "fine", nil)
	s.Node(t, "sick", nil)
	s.Node(t, "bare", nil)
	s.SetReady(t, "bare", false)
	if err := s.Do(t.Context(), http.MethodPost, "/api/v1/namespaces", kubetest.Object{"metadata": kubetest.Object{"name": survey.Namespace}}, nil); err != nil && kube.Code(err) != http.StatusConflict { // another test has created it
		t.Fatal(err)
	}
	for name, dying := range map[string]float64{"fine": 10, "sick": 70000} {
		record, err := json.Marshal(ranking.Record{Facts: map[string]float64{"memcg.dying": dying, "reclaim.p50": dying / 10000}, Spinups: ranking.Spinups{Count: 50, Slow: 5, P99: 2.5}})
		if err != nil {
			t.Fatal(err)
		}
		s.Must(t, http.MethodPost, "/apis/coordination.k8s.io/v1/namespaces/"+survey.Namespace+"/leases", kubetest.Object{
			"metadata": kubetest.Object{"name": name, "annotations": kubetest.Object{survey.RecordAnnotation: string(record)}}}, nil)
	}
	u := newUser(t, s)
	out, _ := u.run(0, "cluster", "nodes")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[1], "bare") || !strings.Contains(lines[1], "not ready") ||
		!strings.Contains(out, "70000") || !strings.Contains(out, "7.0ms") || !strings.Contains(out, "10.0%") {
		t.Errorf("nodes:\n%s", out)
	}
	out, _ = u.run(0, "cluster", "replace", "--worse-than", "memcg.dying=10000", "--dry-run", "--json")
	var p replace.Plan
	if err := json.Unmarshal([]byte(out), &p); err != nil || len(p.Nodes) != 1 || p.Nodes[0].Name != "sick" || len(p.Nodes[0].Why) != 1 {
		t.Errorf("plan %+v, %v of\n%s", p, err, out)
	}
	if _, err := u.run(0, "cluster", "replace", "--worse-than", "memcg.dying=100000"); !strings.Contains(err, "no node matches") {
		t.Errorf("nothing to do: %s", err)
	}
}

// A killed run leaves marks. The next command refuses to begin another run, and --resume
// completes it.
func TestReplaceResumes(t *testing.T) {
	s := cluster(t)
	nodes(t, s)
	h := s.Hands(t)
	web(t, s)
	h.Hold(true)
	u := newUser(t, s)
	r := u.start("cluster", "replace", "--selector", "pool=old", "--", "true")
	kubetest.Await(t, "more pods are to be ready first, and all nodes that are to go are cordoned", func() bool {
		one, m := mark(t, s, "old-1")
		two, n := mark(t, s, "old-2")
		return m != nil && n != nil && one.Spec.Unschedulable && two.Spec.Unschedulable && (m.Phase == replace.Surging || n.Phase == replace.Surging)
	})
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r.end()
	h.Hold(false)
	if _, err := u.run(1, "cluster", "replace", "--selector", "pool=old"); !strings.Contains(err, "--resume") {
		t.Errorf("beside a run that did not end: %s", err)
	}
	if _, err := u.run(2, "cluster", "replace", "--selector", "pool=old", "--resume"); !strings.Contains(err, "hint:") {
		t.Errorf("--resume with a selector: %s", err)
	}
	out, _ := u.run(0, "cluster", "replace", "--resume", "--json", "--", "true")
	var rep replace.Report
	if err := json.Unmarshal([]byte(out), &rep); err != nil || len(rep.Nodes) != 2 || len(rep.Left) != 0 {
		t.Errorf("report %+v, %v", rep, err)
	}
	settled(t, s, "web", 6)
	kubetest.Await(t, "six pods are ready on other nodes", func() bool {
		on := s.ReadyPods(t, "default", "web")
		return on["old-1"]+on["old-2"] == 0 && sum(on) == 6
	})
	for _, name := range []string{"old-1", "old-2"} {
		if n, m := mark(t, s, name); m == nil || m.Phase != replace.Done || m.Cordoned || !n.Spec.Unschedulable {
			t.Errorf("%s at the end: %+v", name, m)
		}
	}
}

// A machine that cannot be deleted stays drained and is reported. The waiting nodes are free
// again.
// An interrupted run frees all nodes. --abandon frees the nodes of a killed run.
func TestReplaceLetsGo(t *testing.T) {
	s := cluster(t)
	nodes(t, s)
	s.Hands(t)
	u := newUser(t, s)
	for flag, want := range map[string]string{"--provision=/bin/sh -c 'true'": "no shell", "--provision=true": "absolute path", "--provision-disk=/bin/true": "goes only with it"} {
		if _, text := u.run(2, "cluster", "replace", "--selector", "pool=old", flag); !strings.Contains(text, want) {
			t.Errorf("%s: %s", flag, text)
		}
	}
	_, text := u.run(6, "cluster", "replace", "--selector", "pool=old", "--", "false")
	if !strings.Contains(text, "--resume") {
		t.Errorf("a command that fails: %s", text)
	}
	left, free := 0, 0
	for _, name := range []string{"old-1", "old-2"} {
		switch n, m := mark(t, s, name); {
		case m != nil && m.Phase == replace.Deleting && n.Spec.Unschedulable:
			left++
		case m == nil && !n.Spec.Unschedulable:
			free++
		}
	}
	if left != 1 || free != 1 {
		t.Errorf("%d left and %d free, want one each", left, free)
	}
	if out, _ := u.run(0, "cluster", "replace", "--abandon"); !strings.Contains(out, "stays cordoned") {
		t.Errorf("abandon: %s", out)
	}

	began := filepath.Join(t.TempDir(), "began")
	r := u.start("cluster", "replace", "--selector", "pool=old", "--", "sh", "-c", "touch "+began+"; sleep 600")
	kubetest.Await(t, "the command runs", func() bool { _, err := os.Stat(began); return err == nil })
	if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := r.end(); code != 6 {
		t.Errorf("interrupted in the command: exit code %d\n%s", code, r.err.String())
	}
	u.run(0, "cluster", "replace", "--abandon")
	for _, name := range []string{"old-1", "old-2"} {
		if _, m := mark(t, s, name); m != nil {
			t.Errorf("%s has a mark: %+v", name, m)
		}
	}
}

// If the API server goes away in the middle, a run waits and does not fail.
func TestReplaceWaitsForTheServer(t *testing.T) {
	s := cluster(t)
	nodes(t, s)
	s.Hands(t)
	web(t, s)
	u := newUser(t, s)
	wait := filepath.Join(t.TempDir(), "wait")
	r := u.start("cluster", "replace", "--selector", "pool=old", "--", "sh", "-c", "touch "+wait+"; while [ -e "+wait+" ]; do sleep 0.1; done")
	kubetest.Await(t, "the command runs for the first node", func() bool { _, err := os.Stat(wait); return err == nil })
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	os.Remove(wait) // the run continues without a server
	time.Sleep(2 * time.Second)
	if err := s.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	kubetest.Await(t, "the command runs for the second node", func() bool { _, err := os.Stat(wait); return err == nil })
	os.Remove(wait)
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d\n%s", code, r.err.String())
	}
	kubetest.Await(t, "six pods are ready on other nodes", func() bool {
		on := s.ReadyPods(t, "default", "web")
		return on["old-1"]+on["old-2"] == 0 && sum(on) == 6
	})
}

func TestClusterIsNotThere(t *testing.T) {
	s := cluster(t)
	u := newUser(t, s)
	u.kubeconfig = filepath.Join(t.TempDir(), "none")
	if _, err := u.run(1, "cluster", "nodes"); !strings.Contains(err, "no Kubernetes cluster") || !strings.Contains(err, "hint:") {
		t.Errorf("no kubeconfig: %s", err)
	}
	text := "contexts: [{name: x, context: {cluster: x}}]\nclusters: [{name: x, cluster: {server: 'https://127.0.0.1:1'}}]\ncurrent-context: x\n"
	if err := os.WriteFile(u.kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := u.run(3, "cluster", "nodes"); !strings.Contains(err, "does not answer") {
		t.Errorf("no server there: %s", err)
	}
	if _, err := u.run(1, "cluster", "nodes", "--context", "y"); !strings.Contains(err, `no context "y"`) {
		t.Errorf("no such context: %s", err)
	}
}

// The agent of a Kubernetes node reports its host to the API server, and ends by a signal.
func TestKubernetesAgent(t *testing.T) {
	s := cluster(t)
	apply(t, s)
	s.Node(t, "mine", nil)
	u := newUser(t, s)
	dir := t.TempDir()
	config := filepath.Join(dir, "holdfast.yaml")
	if err := os.WriteFile(config, []byte("doctor: {every: 1s, burst: 0s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := u.start("agent", "--kubernetes", "--config", config, "--kubeconfig", u.kubeconfig, "--namespace", "holdfast", "--node", "mine", "--api", "none",
		"--data-dir", filepath.Join(dir, "data"), "--run-dir", filepath.Join(dir, "run"), "--cri-socket", filepath.Join(dir, "none.sock"))
	kubetest.Await(t, "the node has conditions, and its lease a record", func() bool {
		n, err := s.Client().Node(t.Context(), "mine")
		if err != nil {
			t.Fatal(err)
		}
		_, ok := n.Condition("HoldfastMemcgLeak")
		records, err := survey.Records(t.Context(), s.Client(), "holdfast")
		return ok && err == nil && records["mine"] != nil && len(records["mine"].Facts) > 5 && records["mine"].Kernel != ""
	})
	out, _ := u.run(0, "cluster", "nodes")
	if !strings.Contains(out, "mine") || strings.Contains(out, "-  -  -  -  -") {
		t.Errorf("nodes:\n%s", out)
	}
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d\n%s", code, r.err.String())
	}
	if _, err := u.run(1, "agent", "--kubernetes", "--kubeconfig", u.kubeconfig, "--data-dir", dir); !strings.Contains(err, "set it with --node") {
		t.Errorf("without a node: %s", err)
	}
	if _, err := u.run(2, "agent", "--cri-socket", "/x"); !strings.Contains(err, "goes with --kubernetes") {
		t.Errorf("without --kubernetes: %s", err)
	}
}
