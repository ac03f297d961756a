package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/job"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// jobParts returns the containers of jobs in the host's engine.
func (h *host) jobParts() []engine.Container {
	h.t.Helper()
	list, err := h.api().List(context.Background(), map[string]string{job.LabelJob: ""})
	if err != nil {
		h.t.Fatal(err)
	}
	return list
}

// leftOfJobs returns the number of containers and networks of jobs in the host's engine.
func (h *host) leftOfJobs() int {
	h.t.Helper()
	networks, err := h.api().(job.Cleaner).Networks(context.Background(), map[string]string{job.LabelJob: ""})
	if err != nil {
		h.t.Fatal(err)
	}
	return len(h.jobParts()) + len(networks)
}

// runningJob is a command that runs.
type runningJob struct {
	cmd *exec.Cmd
	mu  sync.Mutex
	out bytes.Buffer
}

func (r *runningJob) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.Write(p)
}

func (r *runningJob) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.String()
}

// wait returns the command's exit code once it has ended.
func (r *runningJob) wait(t *testing.T) int {
	t.Helper()
	limit := time.AfterFunc(time.Minute, func() { _ = r.cmd.Process.Kill() })
	defer limit.Stop()
	_ = r.cmd.Wait() // the code is in its ProcessState
	return r.cmd.ProcessState.ExitCode()
}

// beginJob starts `holdfast run` and returns when n containers run on the hosts' engines.
func (h *host) beginJob(n int, on []*host, args ...string) *runningJob {
	h.t.Helper()
	r := &runningJob{cmd: exec.Command(holdfastBinary(h.t), append([]string{"run"}, args...)...)}
	r.cmd.Env = append(os.Environ(), "HOLDFAST_SOCKET="+h.socket, "DOCKER_HOST="+h.docker)
	r.cmd.Stdout, r.cmd.Stderr = r, r
	if err := r.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // it may have ended
		_ = r.cmd.Wait()
		if h.t.Failed() {
			h.t.Logf("the job's output:\n%s", r.text())
		}
	})
	poll.Until(h.t, "the job runs", func() bool {
		running := 0
		for _, o := range on {
			for _, c := range o.jobParts() {
				if c.Running() {
					running++
				}
			}
		}
		return running == n
	})
	return r
}

// jobResult is what `run --fleet --json` prints.
type jobResult struct {
	Job      string
	ExitCode int `json:"exit_code"`
	Error    string
	Runs     []struct {
		Index    int
		ExitCode int `json:"exit_code"`
		Node     string
		Error    string
	}
	Spinups []struct {
		Run    int
		Job    string
		Cohort spinup.Cohort
	}
}

func resultOfJob(t *testing.T, r result) (j jobResult) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.out), &j); err != nil {
		t.Fatalf("%v: %s\n%s", err, r.out, r.err)
	}
	return j
}

// Six runs of a job go to three nodes, one fails, and the others do not care. Nodes that
// accept no sessions run nothing. Nothing is left when the command ends, also when it is
// interrupted or killed.
func TestJobsOnTheFleet(t *testing.T) {
	needDocker(t)
	hosts := newFleet(t, 3, patient, "")
	const script = `echo hello $HOLDFAST_JOB_INDEX of $HOLDFAST_JOB_TOTAL; test $HOLDFAST_JOB_INDEX != 4 || exit 7`
	r := hosts[0].cli("run", "--fleet", "--json", "-n", "6", labtest.Busybox, "--", "sh", "-c", script)
	j := resultOfJob(t, r)
	nodes := map[string]bool{}
	for i, run := range j.Runs {
		nodes[run.Node] = true
		want := 0
		if i == 4 {
			want = 7
		}
		if run.Index != i || run.ExitCode != want || run.Error != "" || !strings.Contains(r.err, fmt.Sprintf("%d %s | hello %d of 6\n", i, run.Node, i)) {
			t.Errorf("run %d: %+v", i, run)
		}
	}
	if r.code != 7 || j.ExitCode != 7 || len(j.Runs) != 6 || len(nodes) < 2 || len(j.Spinups) != 6 {
		t.Errorf("exit code %d, %+v\n%s", r.code, j, r.err)
	}
	for _, s := range j.Spinups {
		if s.Job != j.Job || s.Cohort.Host != j.Runs[s.Run].Node {
			t.Errorf("spin-up %+v of job %s", s, j.Job)
		}
	}
	var stats struct{ Count int }
	poll.Until(t, "the nodes have the records", func() bool {
		if err := json.Unmarshal([]byte(hosts[1].must("spinup", "stats", "--fleet", "--kind", "run", "--json")), &stats); err != nil {
			t.Fatal(err)
		}
		return stats.Count == 6
	})
	if n := hosts[0].leftOfJobs(); n > 0 {
		t.Errorf("%d objects are left", n)
	}

	wantError(t, hosts[0].cli("run", "--fleet", "--mount", "/etc:/etc", labtest.Busybox, "--", "true"), 2, "the mount of /etc does not go with --fleet", "volume")
	wantError(t, hosts[0].cli("run", "--fleet", "-i", labtest.Busybox, "--", "true"), 2, "--stdin does not go with --fleet", "--help")
	wantError(t, hosts[0].cli("run", "--fleet=nobody", labtest.Busybox, "--", "true"), 125, `node "nobody"`, "node ls")
	wantError(t, hosts[0].cli("run", "--fleet", "--pull", "never", "no-such-image", "--", "true"), 125, "does not have no-such-image", "pull")
	wantError(t, hosts[0].cli("run", "--fleet", "-n", "2", "--service", "db=127.0.0.1:1/no/such:1", labtest.Busybox, "--", "true"), 125, "db: ", "")

	hosts[1].must("node", "cordon")
	poll.Until(t, "the cordon is known", func() bool {
		return slices.ContainsFunc(hosts[0].nodes(), func(n holdfast.Node) bool { return n.Draining })
	})
	wantError(t, hosts[0].cli("run", "--fleet="+hosts[1].node, labtest.Busybox, "--", "true"), 125, "no named node takes", "node ls")
	running := hosts[0].beginJob(4, hosts[:1], "--fleet", "-n", "4", labtest.Busybox, "--", "sleep", "1000")
	if strings.Contains(running.text(), " on node "+hosts[1].node) {
		t.Errorf("a cordoned node runs a part:\n%s", running.text())
	}
	if err := running.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code, n := running.wait(t), hosts[0].leftOfJobs(); code != 130 || n > 0 {
		t.Errorf("interrupted: exit code %d, %d objects are left", code, n)
	}

	running = hosts[0].beginJob(2, hosts[:1], "--fleet", "-n", "2", labtest.Busybox, "--", "sleep", "1000")
	if err := running.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "a killed command's job is removed", func() bool { return hosts[0].leftOfJobs() == 0 })
}

// The runs of a node whose agent is killed fail with an error that names the node, and what
// they made is removed. Those of other nodes go on to their end.
func TestJobOfALostNode(t *testing.T) {
	needDocker(t)
	labtest.NeedLong(t, "TestJobsOnTheFleet kills the caller; this kills agents of another fleet")
	hosts := newFleet(t, 3, patient, "")
	volume := "gate-" + hosts[0].node
	t.Cleanup(func() {
		if err := hosts[0].api().(interface {
			RemoveVolume(context.Context, string) error
		}).RemoveVolume(context.Background(), volume); err != nil {
			t.Error(err)
		}
	})
	mount := []string{"--mount", volume + ":/gate"}
	wait := append(mount, labtest.Busybox, "--", "sh", "-c", "while ! test -e /gate/open; do sleep 0.1; done; echo done")
	running := hosts[0].beginJob(12, hosts[:1], append([]string{"--fleet", "-n", "12"}, wait...)...)
	var lost *host
	for _, h := range hosts[1:] {
		if strings.Contains(running.text(), " on node "+h.node+"\n") {
			lost = h
		}
	}
	if lost == nil {
		t.Fatalf("the first node runs all:\n%s", running.text())
	}
	lost.signal(syscall.SIGKILL)
	lost.wait()
	poll.Until(t, "the loss is noticed", func() bool { return strings.Contains(running.text(), "node "+lost.node+" was lost: ") })
	hosts[0].must(append(append([]string{"run"}, mount...), labtest.Busybox, "--", "touch", "/gate/open")...)
	code := running.wait(t)
	text := running.text()
	parts := regexp.MustCompile(`(?m)^\s*\d+ (\S+) +\| done$`).FindAllStringSubmatch(text, -1)
	own := regexp.MustCompile(`(?m)^error: node `+lost.node+` was lost while it ran runs? [0-9, to]+$`).FindAllString(text, -1)
	if code != 125 || len(own) != 1 || len(parts) == 0 || len(parts) >= 12 || !strings.Contains(text, "\nhint: the steps there may have had effects") {
		t.Errorf("exit code %d, %d runs ended", code, len(parts))
	}
	for _, p := range parts {
		if p[1] == lost.node {
			t.Errorf("a run of the lost node ended: %q", p[0])
		}
	}
	poll.Until(t, "the watcher of the killed agent removes its part", func() bool { return hosts[0].leftOfJobs() == 0 })
}

// Jobs of one container run on containerd, where each node has images of its own: the node
// that has the image gets the runs.
func TestJobsOnContainerd(t *testing.T) {
	labtest.NeedLong(t, "starts a fleet on containerd")
	hosts := newFleetOn(t, "", 2, patient, func(int) string { return "" }, (*host).start)
	r := hosts[0].cli("run", "--fleet", "--json", "-n", "4", labtest.Busybox, "--", "sh", "-c", "echo $HOLDFAST_JOB_INDEX")
	if j := resultOfJob(t, r); r.code != 0 || len(j.Runs) != 4 {
		t.Errorf("exit code %d: %+v\n%s", r.code, j, r.err)
	}
	wantError(t, hosts[0].cli("run", "--fleet", "--service", "db="+labtest.Busybox, labtest.Busybox, "--", "true"), 125, "create network", "need Docker")
	running := hosts[0].beginJob(2, hosts, "--fleet", "-n", "2", labtest.Busybox, "--", "sleep", "1000")
	if err := running.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		poll.Until(t, "a killed command's job is removed", func() bool { return h.leftOfJobs() == 0 })
	}
}
