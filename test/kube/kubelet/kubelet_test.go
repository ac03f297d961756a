package kubelet_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/node"
	"holdfast/test/kube/kubetest"
	"holdfast/test/lab/labtest"
)

// quick configures a doctor with short intervals.
const quick = "doctor: {every: 2s, burst: 4s, burst_every: 15s, cpu_share: 0.5}\n"

// finds is the time limit for a finding of the agent.
const finds = 4 * time.Minute

// The agent runs as the pod of the DaemonSet. It names the pod that slows its node in events of
// the pod and in conditions of the node, and it does not name another pod.
func TestAgentNamesPods(t *testing.T) {
	labtest.NeedLong(t, "a kubelet takes minutes to build, and drills theirs")
	w := startWorker(t)
	w.run(t, "default", "innocent", kubetest.Object{"containers": []kubetest.Object{{"name": "main", "image": pauseImage, "imagePullPolicy": "Never"}}})
	w.run(t, "holdfast", "agent", w.agentSpec(t, quick))
	kubetest.Await(t, "the agent tells of its node", func() bool {
		n, err := w.Client().Node(t.Context(), nodeName)
		_, ok := n.Condition(node.MemcgLeak)
		return err == nil && ok
	})

	const logger = "logger-6d4b75cb6d-x2x9z" // as a Deployment names its pods
	w.run(t, "default", logger, kubetest.Object{
		"containers": []kubetest.Object{{"name": "main", "image": ourImage, "imagePullPolicy": "Never",
			"args":         []string{drill.Role, task(t, drill.Task{Drill: "fadvise", Part: "logger", Dir: "/work", Size: 4})},
			"volumeMounts": []kubetest.Object{{"name": "work", "mountPath": "/work"}}}},
		"volumes": []kubetest.Object{{"name": "work", "emptyDir": kubetest.Object{}}},
	}, "pod-template-hash", "6d4b75cb6d")
	w.await(t, logger, "FadviseStorm", node.KernelContention)
	if text := w.told(t, logger)["FadviseStorm"]; !strings.Contains(text, "of Deployment/logger") {
		t.Errorf("the workload is not named: %s", text)
	}

	// The churner has a control group for each of its short-lived processes, like an engine
	// inside a pod.
	churn := task(t, drill.Task{Drill: "zombies", Part: "churner", Dir: "/work", Tree: "TREE", Size: 8000})
	w.run(t, "default", "churner", kubetest.Object{
		"containers": []kubetest.Object{{"name": "main", "image": ourImage, "imagePullPolicy": "Never",
			"command": []string{"/bin/busybox", "sh", "-c", `
g=$(/bin/busybox sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
t=$(echo "$1" | /bin/busybox sed "s,TREE,/sys/fs/cgroup/memory$g,")
exec /holdfast ` + drill.Role + ` "$t"`, "churn", churn},
			"securityContext": kubetest.Object{"privileged": true},
			"volumeMounts":    []kubetest.Object{{"name": "work", "mountPath": "/work"}, {"name": "groups", "mountPath": "/sys/fs/cgroup"}}}},
		"volumes": []kubetest.Object{{"name": "work", "emptyDir": kubetest.Object{}}, {"name": "groups", "hostPath": kubetest.Object{"path": "/sys/fs/cgroup"}}},
	})
	w.await(t, "churner", "DyingCgroups", node.MemcgLeak)
	if told := w.told(t, "innocent"); len(told) > 0 {
		t.Errorf("an innocent pod is blamed: %v", told)
	}
}

func task(t *testing.T, x drill.Task) string {
	t.Helper()
	x.For = drill.MaxFor
	b, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// told returns the messages of the agent's events about a pod, by reason.
func (w worker) told(t *testing.T, pod string) map[string]string {
	t.Helper()
	var list struct {
		Items []struct {
			Reason  string         `json:"reason"`
			Message string         `json:"message"`
			About   kube.Reference `json:"involvedObject"`
			Source  struct {
				Component string `json:"component"`
			} `json:"source"`
		} `json:"items"`
	}
	w.Must(t, http.MethodGet, "/api/v1/namespaces/default/events", nil, &list)
	m := make(map[string]string)
	for _, e := range list.Items {
		if e.Source.Component == "holdfast" && e.About.Kind == "Pod" && e.About.Name == pod {
			m[e.Reason] = e.Message
		}
	}
	return m
}

// await waits until the node has the condition with this reason, and a pod has an event of the
// agent with it.
func (w worker) await(t *testing.T, pod, reason, condition string) {
	t.Helper()
	last := ""
	for begin := time.Now(); ; time.Sleep(time.Second) {
		n, err := w.Client().Node(t.Context(), nodeName)
		if err != nil {
			t.Fatal(err)
		}
		c, _ := n.Condition(condition)
		told := w.told(t, pod)
		if c.Status == "True" && c.Reason == reason && strings.Contains(told[reason], "default/"+pod) {
			t.Logf("after %v: %s", time.Since(begin).Round(time.Second), told[reason])
			return
		}
		last = fmt.Sprintf("condition %+v, events of the pod %v", c, told)
		if time.Since(begin) > finds {
			t.Fatalf("pod %s is not named within %v: %s", pod, finds, last)
		}
	}
}
