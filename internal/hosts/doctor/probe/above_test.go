package probe

import (
	"strings"
	"testing"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
)

// The limit of a group above two containers is a fact if it stops them. That of a pod with one
// container is not, and a group without a limit has none.
func TestLimitsAboveContainers(t *testing.T) {
	for _, m := range []cgroup.Mount{{V2: true}, {Controllers: []string{"cpu", "cpuacct"}}} {
		root := t.TempDir()
		m.Point = root
		h := Host{Groups: cgroup.Mounts{m}}
		one, other, third := "/ci.slice/"+strings.Repeat("a", 64), "/ci.slice/"+strings.Repeat("b", 64), "/ci.slice/pod/"+strings.Repeat("c", 64)
		groups := map[string]sample{one: nil, other: nil, third: nil, "/ssh.service": nil}
		stat := func(periods, throttled string) string {
			return "nr_periods " + periods + "\nnr_throttled " + throttled + "\n"
		}
		files(t, root, map[string]string{"ci.slice/cpu.stat": stat("100", "10"), "ci.slice/pod/cpu.stat": stat("100", "0"), "cpu.stat": "usage_usec 9\n"})
		before := readAbove(h, groups)
		files(t, root, map[string]string{"ci.slice/cpu.stat": stat("200", "60"), "ci.slice/pod/cpu.stat": stat("200", "100")})
		set := &fact.Set{}
		set.Add(aboveFacts(before, readAbove(h, groups))...)
		for name, want := range map[string]float64{fact.AbovePeriods: 100, fact.AboveThrottled: 0.5, fact.AboveContainers: 3} {
			if got, ok := set.Device(name, "/ci.slice"); !ok || got != want {
				t.Errorf("%s %v, want %v", name, got, want)
			}
		}
		if len(set.Facts) != 3 {
			t.Errorf("%+v", set.Facts)
		}
	}
}
