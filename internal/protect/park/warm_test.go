package park

import (
	"testing"

	"holdfast/internal/protect/protecttest"
)

// What warms up leaves nothing.
func TestWarm(t *testing.T) {
	needsRoot(t)
	before := protecttest.Look(t)
	Backend{}.Warm()
	protecttest.NothingLeft(t, before)
}
