package cure

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// Each cure is logged once, when it has ended.
func TestCuresAreLogged(t *testing.T) {
	var log bytes.Buffer
	to := slog.New(slog.NewTextHandler(&log, nil))
	begin := time.Now()
	old := Report{Cure: "drop-caches", At: begin.Add(-time.Hour), Seconds: 1}
	first := Report{Cure: "memcg", Target: "/docker", At: begin.Add(time.Second), Seconds: 2, Figures: []Figure{{What: "dying", Before: 20, After: 1}}}
	second := Report{Cure: "pinned", At: begin.Add(2 * time.Second)} // still running
	next := logEnded(to, []Report{second, first, old}, begin)
	if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "cure=memcg") || !strings.Contains(s, "dying=\"[20 1]\"") {
		t.Errorf("logged: %s", s)
	}
	second.Seconds, second.Stopped = 3, "its time was up"
	logEnded(to, []Report{second, first, old}, next)
	if s := log.String(); strings.Count(s, "\n") != 2 || !strings.Contains(s, "cure=pinned") || !strings.Contains(s, "its time was up") {
		t.Errorf("logged: %s", s)
	}
}
