package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/platform/linux/hostload"
)

// A host at rest gets every sixth round; work, a wait for a disk, or an urgent reason gets
// the round that is due.
func TestRest(t *testing.T) {
	dir := t.TempDir()
	r := rest{load: hostload.New(dir)}
	var user, idle, iowait int
	for i, step := range []struct {
		user, idle, iowait int // in this interval
		urgent, skip       bool
	}{
		{idle: 100, skip: true},
		{idle: 100, skip: true},
		{idle: 100, skip: true},
		{idle: 100, skip: true},
		{idle: 100, skip: true},
		{idle: 100},
		{user: 5, idle: 95, skip: true},
		{user: 20, idle: 80},
		{idle: 100, skip: true},
		{idle: 100, urgent: true},
		{idle: 100, skip: true},
		{idle: 50, iowait: 50},
		{idle: 100, skip: true},
	} {
		user, idle, iowait = user+step.user, idle+step.idle, iowait+step.iowait
		if err := os.WriteFile(filepath.Join(dir, "stat"), fmt.Appendf(nil, "cpu  %d 0 0 %d %d 0 0 0 0 0\n", user, idle, iowait), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := r.skip(step.urgent); got != step.skip {
			t.Errorf("step %d: skip %v, want %v", i, got, step.skip)
		}
	}
	r.every = 40 * time.Second
	if r.skip(false) {
		t.Error("two intervals are longer than a minute")
	}
	if err := os.Remove(filepath.Join(dir, "stat")); err != nil {
		t.Fatal(err)
	}
	if r.skip(false) {
		t.Error("a host whose load is unknown counts as at rest")
	}
}
