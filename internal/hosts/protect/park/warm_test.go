package park

import (
	"testing"

	"holdfast/internal/hosts/protect/protecttest"
)

// What warms up works, and leaves nothing.
func TestWarm(t *testing.T) {
	needsRoot(t)
	before := protecttest.Look(t)
	if err := warm(); err != nil {
		t.Error(err)
	}
	protecttest.NothingLeft(t, before)
}
