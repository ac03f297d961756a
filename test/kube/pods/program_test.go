package pods_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"holdfast"
	"holdfast/internal/hosts/kube/cri"
	"holdfast/internal/hosts/kube/evacuate"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/kube/critest"
	"holdfast/test/kube/kubetest"
)

// imds is the part of Amazon's metadata service with the notices of an interruption. The tests
// of internal/sessions/preempt have all of it.
type imds struct {
	mu     sync.Mutex
	action string // "": none
}

func (m *imds) say(action string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.action = action
}

func (m *imds) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case r.URL.Path == "/latest/api/token":
		w.Header().Set("X-aws-ec2-metadata-token-ttl-seconds", "21600")
		fmt.Fprint(w, "token")
	case r.URL.Path == "/latest/meta-data/spot/instance-action" && m.action != "":
		fmt.Fprint(w, m.action)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// A machine announces its end within seconds. Before that, containers that do not end are
// killed, and their pods are removed from the API server. The agent has recorded their
// spin-ups. If the notice is withdrawn, the node accepts pods again.
func TestNodeGoes(t *testing.T) {
	s, c := cluster(t), critest.Start(t)
	path := shared.Program(t)
	s.Node(t, "mine", nil)
	spec := kubetest.PodSpec()
	p := pod(t, s, "stubborn", spec)
	there := &critest.Pod{Namespace: "default", Name: "stubborn", UID: p.Meta.UID}
	c.Sandbox(t, there)
	id := c.Run(t, there, "main", critest.Image)
	r, err := cri.Open(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	pid, err := r.Pid(t.Context(), id)
	if err != nil || syscall.Kill(pid, 0) != nil {
		t.Fatalf("the container's process %d: %v", pid, err)
	}

	cloud := &imds{}
	server := httptest.NewServer(cloud)
	defer server.Close()
	dir := t.TempDir()
	config, data := filepath.Join(dir, "holdfast.yaml"), filepath.Join(dir, "data")
	if err := os.WriteFile(config, []byte("doctor: {burst: 0s}\npreempt: {aws: {endpoint: '"+server.URL+"'}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "agent", "--kubernetes", "--config", config, "--kubeconfig", s.Kubeconfig(t), "--namespace", "default", "--node", "mine", "--api", "none",
		"--data-dir", data, "--run-dir", filepath.Join(dir, "run"), "--cri-socket", c.Socket, "--notices", "aws")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &log, &log, 10*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cloud.say(fmt.Sprintf(`{"action": "terminate", "time": %q}`, time.Now().Add(12*time.Second).UTC().Format(time.RFC3339)))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // an error: it has ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s", log.Bytes())
		}
	}()
	kubetest.Await(t, "the pod is gone from the API server", func() bool {
		_, err := s.Client().Pod(t.Context(), "default", "stubborn")
		return errors.Is(err, holdfast.ErrNotFound)
	})
	// A zombie until its shim reads its exit code.
	if st, err := proc.Host.Stat(pid); err == nil && st.State != 'Z' && st.State != 'X' {
		t.Errorf("its process is in state %c", st.State)
	}
	marked := func() bool {
		n, err := s.Client().Node(t.Context(), "mine")
		if err != nil {
			t.Fatal(err)
		}
		return n.Spec.Unschedulable && len(n.Spec.Taints) > 0 && n.Spec.Taints[0].Key == evacuate.Taint
	}
	if !marked() {
		t.Error("the node takes pods, and goes")
	}
	cloud.say("")
	kubetest.Await(t, "the node takes pods again", func() bool { return !marked() })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	out, err := exec.Command(path, "spinup", "ls", "--kind", "pod", "--data-dir", data, "--json").Output()
	var records []spinup.Record
	if err := errors.Join(err, json.Unmarshal(out, &records)); err != nil || len(records) != 1 || records[0].Container != id || records[0].Job != "default/stubborn" || records[0].Times[spinup.Start] <= 0 {
		t.Errorf("records of spin-ups: %s, %v", out, err)
	}
}

// The API server accepts the example's hook, and the hook works in a container.
func TestPreStopExample(t *testing.T) {
	s, c := cluster(t), critest.Start(t)
	path := shared.Program(t)
	text, err := os.ReadFile("../../../deploy/kubernetes/examples/prestop.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var manifest kubetest.Object
	if err := yaml.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	s.Must(t, http.MethodPost, "/apis/apps/v1/namespaces/default/deployments?dryRun=All&fieldValidation=Strict", manifest, nil)
	var example struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						SecurityContext struct {
							Privileged bool `yaml:"privileged"`
						} `yaml:"securityContext"`
						Lifecycle struct {
							PreStop struct {
								Exec struct {
									Command []string `yaml:"command"`
								} `yaml:"exec"`
							} `yaml:"preStop"`
						} `yaml:"lifecycle"`
					} `yaml:"containers"`
				} `yaml:"spec"`
			} `yaml:"template"`
		} `yaml:"spec"`
	}
	if err := yaml.Unmarshal(text, &example); err != nil {
		t.Fatal(err)
	}
	container := example.Spec.Template.Spec.Containers[0]
	command := container.Lifecycle.PreStop.Exec.Command
	p := &critest.Pod{Namespace: "default", Name: "reader", UID: "u-reader", Privileged: container.SecurityContext.Privileged, Mounts: map[string]string{command[0]: path}}
	c.Sandbox(t, p)
	id := c.Run(t, p, "reader", critest.Image)
	in := func(words ...string) *runtime.ExecSyncResponse {
		t.Helper()
		a, err := c.Pods.ExecSync(t.Context(), &runtime.ExecSyncRequest{ContainerId: id, Cmd: words, Timeout: 60})
		if err != nil || a.ExitCode != 0 {
			t.Fatalf("%v: %v, %s%s", words, err, a.GetStdout(), a.GetStderr())
		}
		return a
	}
	in("/bin/busybox", "dd", "if=/dev/zero", "of=/file", "bs=1048576", "count=16")
	r, err := cri.Open(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	pid, err := r.Pid(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	memory, ok := mounts.Memory()
	groups, err := mounts.Of(proc.Host, pid)
	if err != nil || !ok {
		t.Fatal(err)
	}
	usage := func() (n int64) {
		for _, g := range groups {
			if g.Point == memory.Point {
				if n, err = g.MemoryUsage(); err != nil {
					t.Fatal(err)
				}
			}
		}
		return n
	}
	before := usage()
	answer := in(command...)
	if after := usage(); before < 16<<20 || after > before/2 {
		t.Errorf("of %d bytes %d are left: %s", before, after, answer.Stdout)
	}
}
