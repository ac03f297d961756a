package engine

import "testing"

func TestExitProgram(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		if p, err := exitProgram(arch, 1); err != nil || len(p) > 200 {
			t.Errorf("%s: %d bytes, %v", arch, len(p), err)
		}
	}
	if _, err := exitProgram("vax", 1); err == nil {
		t.Error("there is one for a VAX")
	}
}
