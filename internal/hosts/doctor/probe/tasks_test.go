package probe

import (
	"math"
	"os"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// The waits of threads that began during the examination are compared with their CPU time.
// Threads that ran for the whole examination are counted apart.
func TestYoungThreads(t *testing.T) {
	h, pid := Host{Proc: proc.Host}, os.Getpid()
	group, ok := groupOf(h, pid)
	if !ok {
		t.Fatal("the group of a process is not known")
	}
	const second = float64(time.Second)
	before := map[thread]schedule{{pid, pid}: {ran: second, waited: second}}
	after := map[thread]schedule{
		{pid, pid}:     {ran: 6 * second, waited: 3 * second},
		{pid, pid + 1}: {ran: 0.1 * second, waited: 0.3 * second},
		{pid, pid + 2}: {ran: 0.1 * second, waited: 0.5 * second},
	}
	facts, err := taskFacts(h, before, after, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range facts {
		if f.Subject.Cgroup == group && f.Subject.Pid == 0 {
			got[f.Name] = f.Value
		}
	}
	for name, want := range map[string]float64{fact.GroupLasting: 0.5, fact.GroupWait: 0.2, fact.GroupYoungWait: 4} {
		if math.Abs(got[name]-want) > 1e-9 {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}
