package rule

import (
	"strings"
	"testing"

	"holdfast/internal/hosts/doctor/fact"
)

// Advice for a pool of short-lived containers needs groups that are removed and not released.
func TestAdviceForPools(t *testing.T) {
	many := []fact.Fact{host(fact.MemcgDying, 20000), host(fact.MemcgLiving, 100)}
	for name, c := range map[string]struct {
		more    []fact.Fact
		advised bool
	}{
		"they grow":                {[]fact.Fact{host(fact.GroupsRemoved, 4), host(fact.GroupsReleased, 1.5)}, true},
		"they shrink":              {[]fact.Fact{host(fact.GroupsRemoved, 1), host(fact.GroupsReleased, 2)}, false},
		"all are released":         {[]fact.Fact{host(fact.GroupsRemoved, 4), host(fact.GroupsReleased, 4)}, false},
		"removals are not counted": {nil, false},
	} {
		var s fact.Set
		s.Add(append(many[:2:2], c.more...)...)
		findings := dyingCgroups().Judge(&s)
		if len(findings) != 1 {
			t.Fatalf("%s: %d findings", name, len(findings))
		}
		last := findings[0].Cures[len(findings[0].Cures)-1].What
		if got := strings.Contains(last, "9,000 groups an hour"); got != c.advised {
			t.Errorf("%s: the last cure is %q", name, last)
		}
	}
}

// Each of the groups whose threads share CPUs is named, up to a bound.
func TestSharedCPUs(t *testing.T) {
	var s fact.Set
	s.Add(bound(0.5, bind(web, "cpu0", 0.5), bind(hogs, "cpu0", 0.4), bind("/docker/c", "cpu0", 0.4), bind("/docker/d", "cpu0", 0.3))...)
	found := cpuAffinity().Judge(&s)
	if len(found) != shownBound {
		t.Fatalf("%+v", found)
	}
	for i, group := range []string{web, hogs, "/docker/c"} {
		if f := found[i]; f.Severity != Warning || f.Culprit.Cgroup != group || len(f.Victims) != 3 {
			t.Errorf("%+v", f)
		}
		for _, v := range found[i].Victims {
			if v.Cgroup == group {
				t.Errorf("%s is its own victim", group)
			}
		}
	}
}

// Two jobs that want all CPUs are named while another container waits; neither alone uses a third of
// the CPUs.
func TestTwoWantAllCPUs(t *testing.T) {
	var s fact.Set
	s.Add(append(crowded(0.6), wants(1, 3), wants(2, 2))...)
	found := noisyNeighbour().Judge(&s)
	if len(found) != 2 || found[0].Culprit.Cgroup != "/docker/1" || found[1].Culprit.Cgroup != "/docker/2" || len(found[0].Victims) != 3 {
		t.Errorf("%+v", found)
	}
}

// A build wants all CPUs, though none of its compilers runs for the whole examination. A service that
// starts a short-lived process now and then does not.
func TestBuildWantsAllCPUs(t *testing.T) {
	for lasting, want := range map[float64]int{0: 2, 0.7: 1} {
		var s fact.Set
		s.Add(append(noisy(1, 1, 0.1, 0.5, 0), group(fact.GroupCPU, "/docker/c", 0.75), group(fact.GroupLasting, "/docker/c", lasting), group(fact.GroupYoungWait, "/docker/c", 5))...)
		if found := noisyNeighbour().Judge(&s); len(found) != want || found[0].Culprit.Cgroup != hogs {
			t.Errorf("%v CPUs are used by lasting threads: %+v", lasting, found)
		}
	}
}

// Two containers share all CPUs: others would wait for both. One that uses less than half as much, or
// is throttled, takes little from others.
func TestTwoFillTheCPUs(t *testing.T) {
	second := "/docker/" + strings.Repeat("c", 64)
	for _, c := range []struct {
		second, throttled float64
		want              int
	}{{0.7, 0, 2}, {0.3, 0, 1}, {0.7, 0.5, 1}} {
		var s fact.Set
		s.Add(append(noisy(1, 1, 0.1, 0.05, 0), host(fact.CPUFull, 0.9), group(fact.GroupCPUFull, hogs, 0.6),
			group(fact.GroupCPU, second, c.second), group(fact.GroupCPU, second+"/inner", c.second), group(fact.GroupThrottled, second, c.throttled))...)
		found := noisyNeighbour().Judge(&s)
		if len(found) != c.want || found[0].Culprit.Cgroup != hogs || found[0].Severity != Notice || c.want == 2 && found[1].Culprit.Cgroup != second {
			t.Errorf("%+v: %+v", c, found)
		}
	}
}

// A second group that wants all CPUs and uses nearly as much as the first one is named, too. One that
// only uses as much is not.
func TestTwoNeighbours(t *testing.T) {
	for waits, want := range map[float64]int{1.5: 2, 0.1: 1} {
		var s fact.Set
		s.Add(append(noisy(1, 1, 0.1, 0.5, 0), group(fact.GroupWait, hogs, 3), group(fact.GroupCPU, "/docker/c", 0.8), group(fact.GroupWait, "/docker/c", waits))...)
		found := noisyNeighbour().Judge(&s)
		if len(found) != want || found[0].Culprit.Cgroup != hogs || found[len(found)-1].Victims[0].Cgroup != web {
			t.Errorf("waits %v: %+v", waits, found)
		}
	}
}
