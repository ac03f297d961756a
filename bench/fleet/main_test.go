package fleet

import (
	"os"
	"testing"

	"holdfast/bench/rig"
	"holdfast/test/lab/labtest"
)

// TestMain plays the roles of the children, too. The tests run in a lab, whose
// loopback addresses no other process uses.
func TestMain(m *testing.M) {
	if code, played := rig.PlayMember(); played {
		os.Exit(code)
	}
	os.Exit(labtest.Main(m))
}
