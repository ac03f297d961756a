package preempt

import (
	"testing"
	"time"

	"holdfast/internal/sessions/drain"
)

func TestBudgetOfANotice(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name     string
		deadline time.Time
		want     time.Duration
	}{
		{"no deadline", time.Time{}, 30 * time.Second},
		{"far", now.Add(2 * time.Minute), 30 * time.Second},
		{"near", now.Add(10 * time.Second), 9 * time.Second},
		{"passed", now.Add(-time.Minute), drain.LeastBudget},
	} {
		if got := noticeBudget(30*time.Second, c.deadline, now); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := noticeBudget(time.Second, now.Add(-time.Minute), now); got != time.Second {
		t.Errorf("a budget under the minimum: %v", got)
	}
}
