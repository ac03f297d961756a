package node

import (
	"testing"

	"holdfast/internal/hosts/kube"
)

// A condition that an earlier agent left true stays true until the new agent has found
// the same itself, or until keep is no longer called with it.
func TestKeep(t *testing.T) {
	before := left([]kube.Condition{
		{Type: "Ready", Status: "True"}, {Type: MemcgLeak, Status: "True", Reason: "DyingCgroups"}, {Type: SlowHost, Status: "False"}, {Type: LimitsNear, Status: "True", Reason: "MountLeak"},
	})
	if len(before) != 2 {
		t.Fatalf("left: %+v", before)
	}
	status := func(list []kube.Condition) map[string]string {
		m := make(map[string]string)
		for _, c := range list {
			m[c.Type] = c.Status + c.Reason
		}
		return m
	}
	kept, now := keep(before, Conditions(nil))
	if m := status(now); len(kept) != 2 || len(now) != len(Types()) || m[MemcgLeak] != "TrueDyingCgroups" || m[SlowHost] != "FalseNothingFound" {
		t.Errorf("nothing is found yet: %v, kept %+v", m, kept)
	}
	kept, now = keep(kept, Conditions([]Finding{{Rule: "pinned-cgroups", Severity: "critical"}}))
	if m := status(now); len(kept) != 1 || m[MemcgLeak] != "TruePinnedCgroups" || m[LimitsNear] != "TrueMountLeak" {
		t.Errorf("one is found: %v, kept %+v", m, kept)
	}
	kept, now = keep(kept, Conditions(nil))
	if m := status(now); len(kept) != 1 || m[MemcgLeak] != "FalseNothingFound" {
		t.Errorf("it is over: %v, kept %+v", m, kept)
	}
}
