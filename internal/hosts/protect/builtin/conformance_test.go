package builtin_test

import (
	"os"
	"testing"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/builtin"
	"holdfast/internal/hosts/protect/protecttest"
	"holdfast/test/lab/labtest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == protecttest.RoleServer {
		os.Exit(protecttest.ServerMain(os.Args[2:]))
	}
	os.Exit(labtest.Main(m))
}

// Every backend that holds, and works on this kernel, does what the contract
// says. plug needs a module that most kernels do not have; its own tests run in a
// virtual machine.
func TestBackends(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it needs root, and a network namespace of its own")
	}
	for _, b := range builtin.Backends() {
		if b.Name() == protect.Park || b.Name() == protect.NFQueue {
			t.Run(string(b.Name()), func(t *testing.T) { protecttest.Run(t, b, false) })
		}
	}
}
