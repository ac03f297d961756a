package kubelet_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/replace"
	"holdfast/test/kube/kubetest"
	"holdfast/test/lab/labtest"
)

// control runs the scheduler and the controllers that a surge concerns.
func (w worker) control(t *testing.T) {
	t.Helper()
	config := w.Kubeconfig(t)
	for part, args := range map[string][]string{
		"kube-scheduler": nil,
		"kube-controller-manager": {"--controllers=deployment-controller,replicaset-controller,disruption-controller,node-lifecycle-controller,serviceaccount-controller",
			"--use-service-account-credentials=false"},
	} {
		program, err := kubetest.Binary(t.Context(), part)
		if err != nil {
			t.Fatal(err)
		}
		kubetest.Daemon(t, w.dir, program, append(args, "--kubeconfig="+config, "--authentication-kubeconfig="+config, "--authorization-kubeconfig="+config,
			"--leader-elect=false", "--secure-port=0", "--v=2")...)
	}
}

// leastReady runs do, and returns the lowest number of ready pods of a Deployment meanwhile.
func (w worker) leastReady(t *testing.T, name string, do func()) int {
	t.Helper()
	ready := func() (n int) {
		for _, k := range w.ReadyPods(t, "default", name) {
			n += k
		}
		return n
	}
	least := ready()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for kube.Sleep(ctx, 50*time.Millisecond) == nil {
			least = min(least, ready())
		}
	}()
	do()
	stop()
	<-ended
	return least
}

// A Deployment's pods become ready three seconds after their start. A replacement with a
// surge never has fewer ready pods than before; one without has as few as the budget allows.
// Scheduler, controllers and kubelets are Kubernetes' own.
func TestSurge(t *testing.T) {
	labtest.NeedLong(t, "two kubelets, a scheduler and controllers take minutes to build")
	names := []string{nodeName, "second"}
	both := startWorkers(t, names...)
	for _, w := range both { // without a network, a node is not ready; the pods need none
		w.write(t, "10-none.conflist", `{"cniVersion":"0.4.0","name":"none","plugins":[{"type":"loopback"}]}`)
	}
	w := both[0]
	w.control(t)
	c := w.Client()
	cordon := func(name string, on bool) {
		w.Must(t, http.MethodPatch, "/api/v1/nodes/"+name, kubetest.Object{
			"metadata": kubetest.Object{"annotations": kubetest.Object{replace.MarkAnnotation: nil}}, "spec": kubetest.Object{"unschedulable": on}}, nil)
	}
	for _, name := range names {
		w.Must(t, http.MethodPatch, "/api/v1/nodes/"+name, kubetest.Object{"metadata": kubetest.Object{"labels": kubetest.Object{"is": name}}}, nil)
		kubetest.Await(t, name+" takes pods", func() bool {
			n, err := c.Node(t.Context(), name)
			return err == nil && n.Ready() && len(n.Spec.Taints) == 0
		})
	}
	cordon("second", true)
	labels := kubetest.Object{"app": "web"}
	w.Must(t, http.MethodPost, "/apis/apps/v1/namespaces/default/deployments", kubetest.Object{"metadata": kubetest.Object{"name": "web"}, "spec": kubetest.Object{
		"replicas": 3, "selector": kubetest.Object{"matchLabels": labels},
		"template": kubetest.Object{"metadata": kubetest.Object{"labels": labels}, "spec": kubetest.Object{
			"hostNetwork": true, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 2,
			"containers": []kubetest.Object{{"name": "main", "image": pauseImage, "imagePullPolicy": "Never",
				"command":        []string{"/bin/busybox", "sh", "-c", "/bin/busybox sleep 3; /bin/busybox touch /ready; /bin/busybox sleep 36000"},
				"readinessProbe": kubetest.Object{"periodSeconds": 1, "exec": kubetest.Object{"command": []string{"/bin/busybox", "test", "-e", "/ready"}}}}},
		}}}}, nil)
	w.Must(t, http.MethodPost, "/apis/policy/v1/namespaces/default/poddisruptionbudgets", kubetest.Object{
		"metadata": kubetest.Object{"name": "web"}, "spec": kubetest.Object{"maxUnavailable": 1, "selector": kubetest.Object{"matchLabels": labels}}}, nil)
	on := func(name string) {
		t.Helper()
		kubetest.Await(t, "three pods are ready on "+name, func() bool {
			have := w.ReadyPods(t, "default", "web")
			return have[name] == 3 && len(have) == 1
		})
	}
	on(nodeName)
	for i, surge := range []bool{true, false} {
		cordon(names[1-i], false)
		r, err := replace.New(c, replace.Config{Selector: "is=" + names[i], MaxUnavailable: 1, Grace: -1, Namespace: "holdfast", Surge: surge,
			DrainLimit: 3 * time.Minute, ReadyLimit: 3 * time.Minute, CommandLimit: time.Minute, Patience: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		p, err := r.Plan(t.Context())
		if err != nil || len(p.Problems) > 0 || surge && p.Nodes[0].Surges[0].Skipped != "" {
			t.Fatalf("plan %+v, %v", p, err)
		}
		var steps []string
		var rep replace.Report
		least := w.leastReady(t, "web", func() {
			rep, err = r.Run(t.Context(), p, func(s replace.Step) { steps = append(steps, s.What) })
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, strings.Join(steps, "\n"))
		}
		t.Logf("surge %v: at least %d pods were ready, phases %v", surge, least, rep.Nodes[0].Phases)
		if want := map[bool]int{true: 3, false: 2}[surge]; least != want {
			t.Errorf("surge %v: as few as %d pods were ready, want %d\n%s", surge, least, want, strings.Join(steps, "\n"))
		}
		on(names[1-i])
		for _, kind := range []string{"Deployment", "ReplicaSet"} {
			all, err := c.Workloads(t.Context(), kind, "")
			if err != nil || len(all) != 1 || all[0].Replicas() != 3 || strings.Contains(fmt.Sprint(all[0].Meta.Labels, all[0].Meta.Annotations), "holdfast") {
				t.Errorf("%s: %+v, %v", kind, all, err)
			}
		}
	}
}
