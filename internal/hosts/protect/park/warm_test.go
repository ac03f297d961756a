package park

import (
	"testing"

	"holdfast/internal/hosts/protect/protecttest"
)

// Warm succeeds, and leaves nothing behind.
func TestWarm(t *testing.T) {
	needsRoot(t)
	before := protecttest.Look(t)
	if err := warm(); err != nil {
		t.Error(err)
	}
	protecttest.NothingLeft(t, before)
}
