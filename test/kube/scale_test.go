package kube_test

import (
	"strings"
	"testing"
	"time"

	"holdfast/bench/kubernetes"
	"holdfast/bench/rig"
	"holdfast/test/kube/kubetest"
	"holdfast/test/lab/labtest"
)

// The API server counts few requests of fifty idle agents, and no list. The leases are renewed
// sixty times as often as usual, and the figure is scaled to the usual interval.
func TestAgentsAtRest(t *testing.T) {
	labtest.NeedLong(t, "counts the requests of fifty agents at rest")
	newUser(t, cluster(t)) // builds the program
	server, err := kubetest.Binary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := kubernetes.Run(t.Context(), kubernetes.Options{
		Nodes: 50, For: 12 * time.Second, Renew: 2 * time.Second, APIServer: server, Manifests: deploy,
		Member: []string{"/proc/self/exe", rig.RoleMember},
	})
	if err != nil {
		t.Fatal(err)
	}
	d := r.Details.(kubernetes.Details)
	if r.Failed > 0 || len(d.Lists) > 0 || d.Errors > 0 || r.Score <= 1 {
		t.Errorf("score %v, failed %d: %+v", r.Score, r.Failed, d)
	}
	total := 0
	for kind, n := range d.Kinds {
		total += n
		if kind != "patch leases" && kind != "get nodes" {
			t.Errorf("%d × %s", n, kind)
		}
	}
	// Each agent has renewed its lease a few times. A count of 0 would prove nothing.
	if total < 50*3 || d.Agents != 50 {
		t.Errorf("only %d requests were counted", total)
	}
	var names []string
	for _, row := range r.Rows {
		names = append(names, row.Name)
	}
	if all := strings.Join(names, ", "); !strings.Contains(all, "API server CPU") || !strings.Contains(all, "simulated agent, memory") {
		t.Errorf("rows: %s", all)
	}
}
