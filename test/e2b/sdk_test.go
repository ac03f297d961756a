package e2b

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// The SDKs, from PyPI and from npm.
const (
	pythonSDK = "2.63.0"
	nodeSDK   = "2.51.0"
)

// sdk is one SDK, or a generator of clients. The tests run without a network, so TestMain installs it before, and
// leaves its directory, or why there is none, in variables of the environment.
type sdk struct {
	name, version string
	dirEnv        string
	missingEnv    string
	install       func(dir string) *exec.Cmd
}

func forPython() sdk {
	return sdk{"e2b-python", pythonSDK, "HOLDFAST_TEST_E2B_PYTHON", "HOLDFAST_TEST_E2B_NO_PYTHON", func(dir string) *exec.Cmd {
		return exec.Command("python3", "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", "--target", dir, "e2b=="+pythonSDK)
	}}
}

func forNode() sdk {
	return sdk{"e2b-node", nodeSDK, "HOLDFAST_TEST_E2B_NODE", "HOLDFAST_TEST_E2B_NO_NODE", func(dir string) *exec.Cmd {
		return exec.Command("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", dir, "e2b@"+nodeSDK)
	}}
}

func TestMain(m *testing.M) {
	flag.Parse()
	if !lab.Inside() && !testing.Short() {
		forPython().prepare()
		if labtest.Long() {
			for _, s := range []sdk{forNode(), pythonGenerator(), nodeGenerator()} {
				s.prepare()
			}
		}
	}
	code := labtest.Main(m)
	os.RemoveAll(built.dir)
	os.Exit(code)
}

func (s sdk) prepare() {
	dir, err := s.installed()
	if err != nil {
		os.Setenv(s.missingEnv, err.Error())
	}
	os.Setenv(s.dirEnv, dir)
}

// installed downloads the SDK into the user's cache, unless an earlier run has.
func (s sdk) installed() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "holdfast-test", s.name+"-"+s.version)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), "part-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(part)
	if text, err := s.install(part).CombinedOutput(); err != nil {
		return "", fmt.Errorf("installing %s %s: %w: %s", s.name, s.version, err, text)
	}
	if err := os.Chmod(part, 0o755); err != nil {
		return "", err
	}
	return dir, os.Rename(part, dir)
}

// need skips a test if the SDK could not be installed.
func (s sdk) need(t *testing.T) string {
	t.Helper()
	if why := os.Getenv(s.missingEnv); why != "" {
		t.Skip(why)
	}
	dir := os.Getenv(s.dirEnv)
	if dir == "" {
		t.Skip("needs " + s.name + ", which TestMain installs")
	}
	return dir
}
