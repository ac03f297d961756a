package kubelet_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/kube/evacuate"
	"holdfast/test/kube/kubetest"
	"holdfast/test/lab/labtest"
)

// notices is Amazon's metadata service, which announces an interruption after a while.
type notices struct {
	*httptest.Server
	deadline atomic.Pointer[time.Time]
}

func newNotices(t *testing.T) *notices {
	t.Helper()
	n := &notices{}
	n.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := n.deadline.Load()
		switch {
		case r.Method == http.MethodPut:
			w.Header().Set("X-aws-ec2-metadata-token-ttl-seconds", "21600")
			fmt.Fprint(w, "token")
		case at != nil && strings.HasSuffix(r.URL.Path, "/spot/instance-action"):
			fmt.Fprintf(w, `{"action":"terminate","time":%q}`, at.UTC().Format(time.RFC3339))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(n.Close)
	return n
}

// The agent runs as the DaemonSet's pod with the component. On notice it marks its node. A pod
// that ends by itself gets its grace period from the kubelet. Then the kubelet is stopped, and
// the agent kills the remaining pod and removes it from the API server before the deadline.
func TestPreemption(t *testing.T) {
	labtest.NeedLong(t, "a kubelet takes minutes to build")
	w := startWorker(t)
	n := newNotices(t)
	w.component(t, "preemption", "--notices=gce", "--notices=aws")
	w.run(t, "holdfast", "agent", w.agentSpec(t, quick+"preempt: {aws: {endpoint: '"+n.URL+"'}}\n"))
	owner := kubetest.Object{"metadata": kubetest.Object{"ownerReferences": []kubetest.Object{{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "holdfast-agent", "uid": "x", "controller": true}}}}
	w.Must(t, http.MethodPatch, "/api/v1/namespaces/holdfast/pods/agent", owner, nil)
	shell := func(script string, grace int) kubetest.Object {
		return kubetest.Object{"terminationGracePeriodSeconds": grace, "containers": []kubetest.Object{{"name": "main", "image": pauseImage, "imagePullPolicy": "Never", "command": []string{"/bin/busybox", "sh", "-c", script}}}}
	}
	w.run(t, "default", "polite", shell("trap '/bin/busybox sleep 3; exit 0' TERM; while :; do /bin/busybox sleep 0.2; done", 15))
	w.run(t, "default", "stubborn", shell("trap '' TERM; while :; do /bin/busybox sleep 0.2; done; # stubborn", 600))
	if pids := processes(t, "# stubborn"); len(pids) == 0 {
		t.Fatal("the stubborn pod's process is not seen")
	}

	deadline := time.Now().Add(30 * time.Second)
	n.deadline.Store(&deadline)
	kubetest.Await(t, "the node is marked", func() bool {
		x, err := w.Client().Node(t.Context(), nodeName)
		marked := false
		for _, taint := range x.Spec.Taints {
			marked = marked || taint.Key == evacuate.Taint
		}
		return err == nil && marked && x.Spec.Unschedulable
	})
	kubetest.Await(t, "the pod that ends when asked to has ended", func() bool {
		return slices.Equal(w.pods(t), []string{"agent", "stubborn"})
	})
	if err := w.kubelet.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.kubelet.Signal(unix.SIGCONT) }) // for the pods' end
	if time.Now().After(deadline) {
		t.Fatalf("that was %v after the machine would have gone", time.Since(deadline))
	}
	kubetest.Await(t, "none is left but the DaemonSet's", func() bool { return slices.Equal(w.pods(t), []string{"agent"}) })
	if pids := processes(t, "# stubborn"); len(pids) > 0 {
		t.Errorf("off the API server, and alive: %v", pids)
	}
	t.Logf("the last pod was off the API server %v before the deadline", time.Until(deadline).Round(100*time.Millisecond))
	kubetest.Await(t, "it is said what became of the pods", func() bool {
		var list struct {
			Items []struct {
				Reason  string `json:"reason"`
				Message string `json:"message"`
			} `json:"items"`
		}
		w.Must(t, http.MethodGet, "/api/v1/namespaces/default/events", nil, &list)
		for _, e := range list.Items {
			if e.Reason == "HoldfastEvacuated" {
				t.Log(e.Message)
				return strings.Contains(e.Message, "1 ended with their grace") && strings.Contains(e.Message, "1 were killed") && !strings.Contains(e.Message, "left")
			}
		}
		return false
	})
}

// pods returns the names of the pods on the node.
func (w worker) pods(t *testing.T) []string {
	t.Helper()
	list, err := w.Client().PodsOn(context.WithoutCancel(t.Context()), nodeName)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range list {
		names = append(names, p.Meta.Name)
	}
	slices.Sort(names)
	return names
}

// processes returns the processes with a word in their command line.
func processes(t *testing.T, word string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), word) {
			pids = append(pids, filepath.Base(filepath.Dir(f)))
		}
	}
	return pids
}
