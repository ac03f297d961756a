package fleet

import (
	"context"
	"fmt"
	"os"
	"testing"

	"holdfast/bench/rig"
	"holdfast/test/lab/labtest"
)

// TestMain plays the roles of the children, too. The tests run in a lab, whose
// loopback addresses no other process uses.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == rig.RoleMember {
		if err := rig.Member(context.Background(), os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(labtest.Main(m))
}
