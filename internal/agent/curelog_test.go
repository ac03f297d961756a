package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/cure"
)

// Each cure is told once, when it has ended.
func TestCuresAreTold(t *testing.T) {
	var log bytes.Buffer
	a := &Agent{log: slog.New(slog.NewTextHandler(&log, nil))}
	begin := time.Now()
	old := cure.Report{Cure: "drop-caches", At: begin.Add(-time.Hour), Seconds: 1}
	first := cure.Report{Cure: "memcg", Target: "/docker", At: begin.Add(time.Second), Seconds: 2, Figures: []cure.Figure{{What: "dying", Before: 20, After: 1}}}
	second := cure.Report{Cure: "pinned", At: begin.Add(2 * time.Second)} // at work
	next := a.tellCures([]cure.Report{second, first, old}, begin)
	if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "cure=memcg") || !strings.Contains(s, "dying=\"[20 1]\"") {
		t.Errorf("told: %s", s)
	}
	second.Seconds, second.Stopped = 3, "its time was up"
	a.tellCures([]cure.Report{second, first, old}, next)
	if s := log.String(); strings.Count(s, "\n") != 2 || !strings.Contains(s, "cure=pinned") || !strings.Contains(s, "its time was up") {
		t.Errorf("told: %s", s)
	}
}
