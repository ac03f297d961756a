package e2b

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var (
	ownTests  = flag.String("sdk-tests", "", "directory packages/python-sdk of a copy of github.com/e2b-dev/E2B: its tests run against an agent")
	ownPython = flag.String("sdk-python", "", "Python with that version of e2b, and with what its tests need")
	ownPause  = flag.Bool("sdk-pause", false, "with sandboxes under gVisor, for the tests that pause them")
	ownArgs   = flag.String("sdk-args", "", "arguments for pytest or vitest")
	ownNode   = flag.String("sdk-tests-node", "", "directory packages/js-sdk of that copy, with what its tests need in node_modules")
)

// The Python SDK's own tests run against an agent with TLS.
func TestOwnTestsOfTheSDK(t *testing.T) {
	if *ownTests == "" {
		t.Skip("needs -sdk-tests and -sdk-python")
	}
	ownTestsRun(t, *ownTests, *ownPython, "-m", "pytest", "-p", "no:cacheprovider", "-q")
}

// The same for JavaScript. The tests of browsers and of building templates are left out.
func TestOwnTestsOfTheJavaScriptSDK(t *testing.T) {
	if *ownNode == "" {
		t.Skip("needs -sdk-tests-node")
	}
	config, err := filepath.Abs("testdata/vitest.config.mjs")
	if err != nil {
		t.Fatal(err)
	}
	ownTestsRun(t, *ownNode, "node", "node_modules/vitest/vitest.mjs", "run", "--config", config, "--root", *ownNode)
}

// ownTestsRun runs an SDK's tests in their directory. The image has the programs of this
// host, which they expect.
func ownTestsRun(t *testing.T, dir, program string, args ...string) {
	t.Helper()
	const mounts = "{type: bind, source: /usr, target: /usr, read_only: true}"
	var n *node
	if *ownPause {
		n = startDomainOn(t, newPausing(t, "127.0.0.1:443"), "user", "base", "all", mounts)
	} else {
		n = startDomain(t, "base", "all", mounts)
	}
	n.quiet = true
	cmd := exec.CommandContext(t.Context(), program, append(args, strings.Fields(*ownArgs)...)...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), n.environment...), "E2B_API_KEY="+apiKey, "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}
