package e2b

import (
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"
)

var (
	ownTests  = flag.String("sdk-tests", "", "directory packages/python-sdk of a copy of github.com/e2b-dev/E2B: its tests run against the door")
	ownPython = flag.String("sdk-python", "", "Python with that version of e2b, and with what its tests need")
	ownPause  = flag.Bool("sdk-pause", false, "with sandboxes under gVisor, for the tests that pause them")
	ownArgs   = flag.String("sdk-args", "", "arguments for pytest")
)

// The SDK's own tests run against a door with TLS. The image has the programs of this
// host, which they expect.
func TestOwnTestsOfTheSDK(t *testing.T) {
	if *ownTests == "" {
		t.Skip("needs -sdk-tests and -sdk-python")
	}
	const mounts = "{type: bind, source: /usr, target: /usr, read_only: true}"
	var n *node
	if *ownPause {
		n = startDomainOn(t, newPausing(t, "127.0.0.1:443"), "root", "base", "all", mounts)
	} else {
		n = startDomain(t, "base", "all", mounts)
	}
	n.quiet = true
	cmd := exec.CommandContext(t.Context(), *ownPython, append([]string{"-m", "pytest", "-p", "no:cacheprovider", "-q"}, strings.Fields(*ownArgs)...)...)
	cmd.Dir = *ownTests
	cmd.Env = append(append(os.Environ(), n.environment...), "E2B_API_KEY="+apiKey, "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}
