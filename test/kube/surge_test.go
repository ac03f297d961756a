package kube_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/replace"
	"holdfast/test/kube/kubetest"
	"holdfast/test/lab/labtest"
)

// cloud makes a node for each file in a directory, as a machine that boots there would.
// It returns the command that makes the file.
func cloud(t *testing.T, s *kubetest.Server) (provision []string) {
	t.Helper()
	dir := t.TempDir()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for made := map[string]bool{}; ctx.Err() == nil; _ = kube.Sleep(ctx, 50*time.Millisecond) {
			files, _ := os.ReadDir(dir) // an empty list is read again
			for _, f := range files {
				// A machine takes longer to boot than the second that separates times of creation.
				if info, err := f.Info(); err != nil || made[f.Name()] || time.Since(info.ModTime()) < 1100*time.Millisecond {
					continue
				}
				made[f.Name()] = true
				s.Node(t, "for-"+f.Name(), nil)
			}
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
	return []string{"/usr/bin/touch", filepath.Join(dir, "{node}")}
}

// lowest watches a ReplicaSet. The result returns the lowest number of ready pods so far.
func lowest(t *testing.T, s *kubetest.Server, name string) func() int {
	t.Helper()
	least := sum(s.ReadyPods(t, "default", name))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			least = min(least, sum(s.ReadyPods(t, "default", name)))
			_ = kube.Sleep(ctx, 10*time.Millisecond)
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
	return func() int { stop(); <-ended; return least }
}

// settled fails the test if a ReplicaSet is enlarged.
func settled(t *testing.T, s *kubetest.Server, name string, replicas int) {
	t.Helper()
	var w kube.Workload
	s.Must(t, http.MethodGet, "/apis/apps/v1/namespaces/default/replicasets/"+name, nil, &w)
	if w.Replicas() != replicas || w.Meta.Labels[replace.SurgeLabel] != "" {
		t.Errorf("ReplicaSet %s is to have %d pods, and labels %v", name, w.Replicas(), w.Meta.Labels)
	}
}

// operator returns a client with the rights of the example role, with those for a surge or
// without them.
func operator(t *testing.T, s *kubetest.Server, surge bool) *kube.Client {
	t.Helper()
	group := "holdfast-operators"
	for _, o := range documents(t, filepath.Join(deploy, "examples", "replace-rbac.yaml")) {
		if !surge {
			group = "drainers"
			meta := o["metadata"].(kubetest.Object)
			meta["name"] = group
			if rules, ok := o["rules"].([]any); ok {
				o["rules"] = rules[:len(rules)-2]
			} else {
				o["roleRef"].(kubetest.Object)["name"] = group
				o["subjects"].([]any)[0].(kubetest.Object)["name"] = group
			}
		}
		err := s.Do(t.Context(), http.MethodPost, paths[o["kind"].(string)]+"?fieldValidation=Strict", o, nil)
		if err != nil && kube.Code(err) != http.StatusConflict { // another test has created it
			t.Fatal(err)
		}
	}
	conf := s.Config()
	conf.AsUser, conf.AsGroups = "operator", []string{group, "system:authenticated"}
	c, err := kube.New(conf, kube.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	kubetest.Await(t, "the role holds", func() bool { _, err := c.Nodes(t.Context(), ""); return err == nil })
	return c
}

// All nodes are replaced by new ones. A budget that allows no eviction is met, because
// more pods are ready first: at no time are fewer ready than before.
func TestReplaceSurges(t *testing.T) {
	s := cluster(t)
	for _, n := range []string{"old-1", "old-2"} {
		s.Node(t, n, map[string]string{"pool": "old"})
	}
	s.Hands(t)
	s.ReplicaSet(t, "default", "web", 6, kubetest.PodSpec())
	s.Budget(t, "default", "web", "web", 6)
	kubetest.Await(t, "six pods are ready", func() bool { return sum(s.ReadyPods(t, "default", "web")) == 6 })
	conf := settings()
	conf.Surge = true
	conf.Provision = cloud(t, s)
	conf.Disk = []string{"/bin/echo", "disk of", "{new-node}"}
	conf.Command = []string{"true"}
	conf.MaxUnavailable = 2
	r, err := replace.New(operator(t, s, true), conf)
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.Plan(t.Context())
	if err != nil || len(p.Problems) > 0 || p.Nodes[0].Surges[0] != (replace.Surge{Namespace: "default", Workload: "ReplicaSet/web", Pods: 3}) {
		t.Fatalf("plan: %+v, %v", p, err)
	}
	least := lowest(t, s, "web")
	var steps []string
	rep, err := r.Run(t.Context(), p, func(s replace.Step) { steps = append(steps, s.Node+": "+s.What) })
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(steps, "\n"))
	}
	if n := least(); n < 6 {
		t.Errorf("at one time only %d pods were ready\n%s", n, strings.Join(steps, "\n"))
	}
	kubetest.Await(t, "six pods are ready on the new nodes", func() bool {
		on := s.ReadyPods(t, "default", "web")
		return sum(on) == 6 && on["for-old-1"]+on["for-old-2"] == 6
	})
	settled(t, s, "web", 6)
	taken := map[string]bool{}
	for _, n := range rep.Nodes {
		var phases []replace.Phase
		for _, p := range n.Phases {
			phases = append(phases, p.Phase)
			if p.Phase == replace.Preparing && p.Output != "disk of "+n.NewNode+"\n" {
				t.Errorf("output %q", p.Output)
			}
		}
		if want := []replace.Phase{replace.Provisioning, replace.Joining, replace.Preparing, replace.Surging, replace.Draining, replace.Deleting}; !slices.Equal(phases, want) {
			t.Errorf("phases of %s: %v", n.Node, phases)
		}
		if len(n.Surges) != 1 || n.Surges[0].Skipped != "" || n.Evicted != 3 {
			t.Errorf("surges of %s: %+v, %d evicted", n.Node, n.Surges, n.Evicted)
		}
		taken[n.NewNode] = true
	}
	if len(taken) != 2 || taken[""] {
		t.Errorf("new nodes %v", taken)
	}
}

// If the new pods do not become ready, or the run is interrupted, the workload is scaled
// back. A count that another component has set in the meantime stays. Without the rights
// for a surge, pods are evicted at once.
func TestReplaceUndoesASurge(t *testing.T) {
	s := cluster(t)
	nodes(t, s)
	h := s.Hands(t)
	web(t, s)
	h.Hold(true)
	conf := settings()
	conf.Surge = true
	conf.ReadyLimit, conf.DrainLimit = time.Second, 2*time.Second
	for _, c := range []struct {
		client  *kube.Client
		foreign bool
		skipped string
		after   int
	}{
		{s.Client(), false, "", 6},
		{s.Client(), true, "", 9},
		{operator(t, s, false), false, "credentials", 9},
	} {
		r, err := replace.New(c.client, conf)
		if err != nil {
			t.Fatal(err)
		}
		p, err := r.Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		rep, err := r.Run(ctx, p, func(x replace.Step) {
			if c.foreign && strings.Contains(x.What, "instead of") {
				s.Must(t, http.MethodPatch, "/apis/apps/v1/namespaces/default/replicasets/web", kubetest.Object{"spec": kubetest.Object{"replicas": 9}}, nil)
				stop()
			}
		})
		stop()
		if c.skipped == "" && !c.foreign && !errors.Is(err, replace.ErrHealth) || c.foreign && !errors.Is(err, context.Canceled) || err == nil {
			t.Errorf("the run ended with %v", err)
		}
		var surges []replace.Surge
		for _, n := range rep.Nodes {
			surges = append(surges, n.Surges...)
		}
		if len(surges) == 0 || !strings.Contains(surges[0].Skipped, c.skipped) || (c.skipped == "") != (surges[0].Skipped == "") {
			t.Errorf("surges %+v, want skipped %q", surges, c.skipped)
		}
		settled(t, s, "web", c.after)
		if c.skipped != "" {
			continue // a node with pods that the budget lets go is drained
		}
		for _, name := range []string{"old-1", "old-2"} {
			if n, m := mark(t, s, name); n.Spec.Unschedulable || m != nil {
				t.Errorf("%s is left cordoned: %+v %+v", name, n.Spec, m)
			}
		}
	}
}

// The plan names what is evicted without a surge, and why.
func TestReplaceSkipsSurges(t *testing.T) {
	s := cluster(t)
	nodes(t, s)
	labels := kubetest.Object{"app": "x"}
	body := func(more kubetest.Object) kubetest.Object {
		spec := kubetest.Object{"replicas": 1, "selector": kubetest.Object{"matchLabels": labels},
			"template": kubetest.Object{"metadata": kubetest.Object{"labels": labels}, "spec": kubetest.PodSpec()}}
		for k, v := range more {
			spec[k] = v
		}
		return spec
	}
	make := func(plural, name string, owner kubetest.Object, spec kubetest.Object) kubetest.Object {
		var made kube.Pod
		meta := kubetest.Object{"name": name}
		if owner != nil {
			meta["ownerReferences"] = []kubetest.Object{owner}
		}
		s.Must(t, http.MethodPost, "/apis/apps/v1/namespaces/default/"+plural, kubetest.Object{"metadata": meta, "spec": spec}, &made)
		kind := map[string]string{"deployments": "Deployment", "replicasets": "ReplicaSet", "statefulsets": "StatefulSet"}[plural]
		return kubetest.Object{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": made.Meta.UID, "controller": true}
	}
	rolling := func(surge any) kubetest.Object {
		return kubetest.Object{"strategy": kubetest.Object{"type": "RollingUpdate", "rollingUpdate": kubetest.Object{"maxSurge": surge, "maxUnavailable": 1}}}
	}
	want := map[string]string{}
	pod := func(name, why string, owner, meta, spec kubetest.Object) {
		want[fmt.Sprint(owner["kind"], "/", owner["name"])] = why
		if owner["top"] != nil {
			delete(want, fmt.Sprint(owner["kind"], "/", owner["name"]))
			want[owner["top"].(string)] = why
			delete(owner, "top")
		}
		all := kubetest.PodSpec()
		all["nodeName"] = "old-1"
		for k, v := range spec {
			all[k] = v
		}
		m := kubetest.Object{"name": name, "ownerReferences": []kubetest.Object{owner}}
		for k, v := range meta {
			m[k] = v
		}
		s.Must(t, http.MethodPost, "/api/v1/namespaces/default/pods", kubetest.Object{"metadata": m, "spec": all}, nil)
	}
	under := func(d kubetest.Object) kubetest.Object {
		set := make("replicasets", d["name"].(string)+"-1", d, body(nil))
		set["top"] = fmt.Sprint(d["kind"], "/", d["name"])
		return set
	}
	pod("a", "", under(make("deployments", "plain", nil, body(nil))), nil, nil)
	pod("b", "Recreate", under(make("deployments", "recreate", nil, body(kubetest.Object{"strategy": kubetest.Object{"type": "Recreate"}}))), nil, nil)
	pod("c", "maxSurge 0", under(make("deployments", "none", nil, body(rolling(0)))), nil, nil)
	pod("d", "maxSurge 0", under(make("deployments", "percent", nil, body(rolling("0%")))), nil, nil)
	pod("e", "rollout", under(make("deployments", "rolls", nil, body(nil))), nil, nil)
	s.Must(t, http.MethodPatch, "/apis/apps/v1/namespaces/default/deployments/rolls/status", kubetest.Object{"status": kubetest.Object{"replicas": 2, "updatedReplicas": 1}}, nil)
	pod("f", "HorizontalPodAutoscaler hpa", under(make("deployments", "scaled", nil, body(nil))), nil, nil)
	s.Must(t, http.MethodPost, "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", kubetest.Object{"metadata": kubetest.Object{"name": "hpa"},
		"spec": kubetest.Object{"maxReplicas": 3, "scaleTargetRef": kubetest.Object{"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"}}}, nil)
	pod("g", "only Deployments", make("statefulsets", "db", nil, body(nil)), nil, nil)
	pod("h", "volume claim", make("replicasets", "claims", nil, body(nil)), nil,
		kubetest.Object{"volumes": []kubetest.Object{{"name": "v", "persistentVolumeClaim": kubetest.Object{"claimName": "c"}}}})
	pod("i", "never", make("replicasets", "never", nil, body(nil)), kubetest.Object{"annotations": kubetest.Object{replace.SurgeAnnotation: "never"}}, nil)
	pod("j", "belongs to a Rollout", under(kubetest.Object{"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "r", "uid": "x", "controller": true}), nil, nil)
	conf := settings()
	conf.Surge = true
	p, err := newRunner(t, s, conf).Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range p.Nodes {
		for _, x := range n.Surges {
			why, ok := want[x.Workload]
			if !ok || (why == "") != (x.Skipped == "") || !strings.Contains(x.Skipped, why) {
				t.Errorf("%s is skipped: %q, want %q", x.Workload, x.Skipped, why)
			}
			delete(want, x.Workload)
		}
	}
	if len(want) > 0 {
		t.Errorf("not in the plan: %v", want)
	}
}

// A command that is killed at any of its writes leaves nothing for good: --resume finishes
// the run, and --abandon undoes it.
func TestReplaceKilled(t *testing.T) {
	s := cluster(t)
	s.Hands(t)
	p := s.Proxy(t)
	u := user{t, p.Kubeconfig(t)}
	shared.Program(t)
	type point struct {
		write   int
		abandon bool
	}
	points := []point{{11, false}, {14, true}} // the ReplicaSet is larger; a pod is evicted
	if labtest.Long() {
		points = nil
		for i := range 20 {
			points = append(points, point{i + 1, false}, point{i + 1, true})
		}
	}
	for _, at := range points {
		t.Run(fmt.Sprintf("%+v", at), func(t *testing.T) {
			t.Cleanup(func() { s.Clean(t) })
			for _, n := range []string{"old-1", "old-2"} {
				s.Node(t, n, map[string]string{"pool": "old"})
			}
			s.ReplicaSet(t, "default", "web", 6, kubetest.PodSpec())
			kubetest.Await(t, "six pods are ready", func() bool { return sum(s.ReadyPods(t, "default", "web")) == 6 })
			provision := "--provision=" + strings.Join(cloud(t, s), " ")
			writes, last, reached := 0, "", make(chan struct{})
			p.Break(func(r *http.Request) kubetest.Fault {
				switch {
				case writes > at.write:
					return kubetest.Fault{Gone: true}
				case writes == at.write: // the client tries again: the server has carried out the write
					writes++
					close(reached)
					return kubetest.Fault{Gone: true}
				case r.Method == http.MethodGet:
					return kubetest.Fault{}
				}
				writes++
				last = r.Method + " " + r.URL.Path
				return kubetest.Fault{Lost: writes == at.write}
			})
			run := u.start("cluster", "replace", "--selector", "pool=old", provision, "--", "true")
			select {
			case <-reached:
			case <-time.After(time.Minute):
				t.Fatalf("only %d writes\n%s", writes, run.err.String())
			}
			if err := run.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			run.end()
			p.Break(nil)
			t.Log("killed after", last)
			if at.abandon {
				u.run(0, "cluster", "replace", "--abandon")
			} else {
				u.run(0, "cluster", "replace", "--resume", provision, "--", "true")
			}
			settled(t, s, "web", 6)
			on := s.ReadyPods(t, "default", "web")
			// A node is replaced, or it takes pods: the run had not claimed it, or was abandoned.
			for _, name := range []string{"old-1", "old-2"} {
				if n, m := mark(t, s, name); m != nil && m.Phase != replace.Done || n.Spec.Unschedulable && on[name] > 0 || m == nil && !at.abandon && at.write > 2 {
					t.Errorf("%s: %+v, cordoned %v, ready pods %v", name, m, n.Spec.Unschedulable, on)
				}
			}
			kubetest.Await(t, "six pods are ready", func() bool { return sum(s.ReadyPods(t, "default", "web")) == 6 })
		})
	}
}
