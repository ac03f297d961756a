package replace

import (
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/kube"
)

func TestLimits(t *testing.T) {
	l, err := ParseLimits([]string{"age=60d", "memcg.dying=10000", "reclaim.p50=2ms", "spinup.slow=5%", "spinup.p99=1m"})
	if err != nil {
		t.Fatal(err)
	}
	day := 24 * time.Hour
	r := &ranking.Record{Facts: map[string]float64{"memcg.dying": 20000, "reclaim.p50": 2.5}, Spinups: ranking.Spinups{Count: 100, Slow: 6, P99: 59}}
	for _, c := range []struct {
		age  time.Duration
		r    *ranking.Record
		want int
	}{
		{61 * day, nil, 1},
		{60 * day, nil, 0},
		{day, r, 3},
		{day, &ranking.Record{}, 0}, // nothing is known
		{day, &ranking.Record{Spinups: ranking.Spinups{Count: 1, P99: 61}}, 1},
	} {
		if got := l.Over(c.age, c.r); len(got) != c.want {
			t.Errorf("age %v, %+v: over %v, want %d", c.age, c.r, got, c.want)
		}
	}
	for _, bad := range []string{"age", "=5", "age=", "age=old", "x=-1", "x=NaN", "x=5%%"} {
		if _, err := ParseLimits([]string{bad}); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestTimes(t *testing.T) {
	at := func(s int) time.Time { return time.Date(2026, 1, 1, 0, 0, s, 0, time.UTC) }
	done := func(from, to int) kube.ContainerStatus {
		var c kube.ContainerStatus
		c.State.Terminated = &struct {
			Started  time.Time `json:"startedAt"`
			Finished time.Time `json:"finishedAt"`
			ExitCode int       `json:"exitCode"`
		}{at(from), at(to), 0}
		return c
	}
	var main kube.ContainerStatus
	main.State.Running = &struct {
		Started time.Time `json:"startedAt"`
	}{at(20)}
	p := kube.Pod{Meta: kube.Meta{Created: at(1)}}
	p.Status.InitContainers = []kube.ContainerStatus{done(5, 9), done(10, 18)}
	p.Status.Containers = []kube.ContainerStatus{main}
	p.Status.Conditions = []kube.Condition{{Type: "Ready", Status: "True", Since: at(50)}}
	x := TimesOf(p)
	if x.Init == nil || time.Duration(*x.Init) != 13*time.Second || x.Start == nil || time.Duration(*x.Start) != 30*time.Second || x.Total == nil || time.Duration(*x.Total) != 49*time.Second {
		t.Errorf("init %v, start %v, total %v", x.Init, x.Start, x.Total)
	}
	p.Status.Containers[0].RestartCount = 1
	if x = TimesOf(p); x.Init == nil || x.Start != nil || x.Total != nil {
		t.Errorf("a pod that was started again: %+v", x)
	}
	if x = TimesOf(kube.Pod{}); x.Init != nil || x.Start != nil || x.Total != nil {
		t.Errorf("an empty pod: %+v", x)
	}
}
