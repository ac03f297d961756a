package probe

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/hosts/doctor/fact"
)

// Kills of the last minutes are counted by control group, by records of the kernel alone.
func TestOOMKills(t *testing.T) {
	id := strings.Repeat("a", 64)
	text := func(constraint, group, task string) string {
		return "oom-kill:constraint=" + constraint + ",nodemask=(null),cpuset=" + group + ",mems_allowed=0,oom_memcg=" + group + ",task_memcg=" + group + ",task=" + task + ",pid=25279,uid=0"
	}
	of := func(level int, at time.Duration, text string) string {
		record, _, _ := strings.Cut(logged(level, at.Microseconds(), text), "\n")
		return record
	}
	now := time.Hour
	fs := oomKills([]string{
		of(6, now-11*time.Minute, text("CONSTRAINT_MEMCG", "/docker/"+id, "old")),
		of(6, now-90*time.Second, text("CONSTRAINT_MEMCG", "/docker/"+id+"/inner", "node")),
		of(6, now-30*time.Second, text("CONSTRAINT_MEMCG", "/docker/"+id, "a,task=b,pid=1")),
		of(6, now-20*time.Second, text("CONSTRAINT_NONE", "/user.slice", "chrome")),
		of(14, now-20*time.Second, text("CONSTRAINT_MEMCG", "/docker/forged", "node")),
		of(6, now-20*time.Second, "a text with oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/x,task=y,pid=1"),
		of(6, now-20*time.Second, "oom-kill:constraint="),
	}, now)
	want := []fact.Fact{
		{Name: fact.OOMKilled, Value: 2, Unit: fact.Count, Over: 30, Subject: fact.Subject{Cgroup: "/docker/" + id, Command: "a,task=b,pid=1"}},
		{Name: fact.HostOOMKilled, Value: 1, Unit: fact.Count, Over: 20, Subject: fact.Subject{Cgroup: "/user.slice", Command: "chrome"}},
	}
	if diff := cmp.Diff(want, fs); diff != "" {
		t.Error(diff)
	}
}
