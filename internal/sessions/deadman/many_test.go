package deadman

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"holdfast/internal/platform/linux/boottime"
	"holdfast/test/poll"
)

// many is how many containers this test kills at once. The figures of
// docs/adr/deadman.md are of 2,000.
const many = 100

// A deadman with many containers uses little memory, and kills them all at once.
func TestManyContainers(t *testing.T) {
	c := newClient(t, runDir(t))
	c.Extend(soon(time.Hour))
	before := anonymous(t, c.Pid())
	boxes := make([]*box, many)
	for i := range boxes {
		boxes[i] = newBox(t, newID())
	}
	begun := boottime.Now()
	for _, b := range boxes {
		hold(t, c, b)
	}
	told, small := -begun.Until(), anonymous(t, c.Pid())
	deadline := soon(0)
	c.Extend(deadline)
	var last boottime.Instant
	for _, b := range boxes {
		<-b.died
		last = max(last, b.at)
	}
	poll.Until(t, "all are seen dead", func() bool { return c.StandDown() == nil })
	t.Logf("%d containers: told in %v, all dead %v after the deadline; %d kB of its own, %d kB with them",
		many, told, time.Duration(last-deadline), before, small)
	if most := before + 16<<10; small > most {
		t.Errorf("it has %d kB of anonymous memory, want at most %d", small, most)
	}
}

// anonymous is a process's anonymous memory in kB, without the pages of its program's
// file.
func anonymous(t *testing.T, pid int) (kb int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "RssAnon:")
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		t.Fatal(err)
	}
	return kb
}
