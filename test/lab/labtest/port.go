package labtest

import (
	"testing"

	"holdfast/test/lab"
)

// FreePort returns an address of the loopback that has no listener now (see lab.FreePort).
func FreePort(t testing.TB) string {
	t.Helper()
	address, err := lab.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return address
}
