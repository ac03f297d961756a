package e2b

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// pythonSDKs and nodeSDKs are the last three minor versions on PyPI and on npm, the newest
// first. With -long all of them are tested.
func pythonSDKs() []sdk { return sdks("e2b-python", "2.63.0", "2.61.0", "2.60.0") }

func nodeSDKs() []sdk { return sdks("e2b-node", "2.51.0", "2.50.0", "2.49.1") }

// sdk is one SDK, or a generator of clients. The tests run without a network, so TestMain
// installs it before, and leaves its directory, or why there is none, in variables of the
// environment.
type sdk struct{ name, version string }

func sdks(name string, versions ...string) (all []sdk) {
	for _, v := range versions {
		all = append(all, sdk{name, v})
	}
	return all
}

func (s sdk) variable() string {
	return "HOLDFAST_TEST_" + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_")) + "_" + strings.ReplaceAll(s.version, ".", "_")
}

// install returns the command that installs the package into a directory.
func (s sdk) install(dir string) *exec.Cmd {
	pip := []string{"python3", "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", "--target", dir}
	npm := []string{"npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", dir}
	argv := map[string][]string{
		"e2b-python":     append(pip, "e2b=="+s.version),
		"e2b-node":       append(npm, "e2b@"+s.version),
		"openapi-python": append(pip, "openapi-python-client=="+s.version, "httpx==0.28.1", "attrs", "python-dateutil"),
		"openapi-node":   append(npm, "openapi-typescript@"+s.version, "openapi-fetch@0.17.0", "typescript@5.9.3", "@types/node@20"),
		"oauth2-proxy":   {"go", "install", "github.com/oauth2-proxy/oauth2-proxy/v7@v" + s.version},
	}[s.name]
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=")
	return cmd
}

func TestMain(m *testing.M) {
	flag.Parse()
	if !lab.Inside() && !testing.Short() {
		wanted := pythonSDKs()[:1]
		if labtest.Long() {
			wanted = append(append(pythonSDKs(), nodeSDKs()...), pythonGenerator(), nodeGenerator(), loginService())
		}
		for _, s := range wanted {
			s.prepare()
		}
	}
	code := labtest.Main(m)
	os.RemoveAll(built.dir)
	os.Exit(code)
}

func (s sdk) prepare() {
	dir, err := s.installed()
	if err != nil {
		os.Setenv(s.variable()+"_MISSING", err.Error())
	}
	os.Setenv(s.variable(), dir)
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

// need fails a test if the package could not be installed.
func (s sdk) need(t *testing.T) string {
	t.Helper()
	if why := os.Getenv(s.variable() + "_MISSING"); why != "" {
		t.Fatal(why)
	}
	dir := os.Getenv(s.variable())
	if dir == "" {
		t.Fatal("TestMain did not install " + s.name)
	}
	return dir
}
