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

// pythonSDK is the version of the SDK for Python, from PyPI.
const pythonSDK = "2.63.0"

// sdkEnv has the directory of the SDK for the tests, which run without a network. With the
// text of an error there is no SDK.
const (
	sdkEnv     = "HOLDFAST_TEST_E2B_PYTHON"
	missingEnv = "HOLDFAST_TEST_E2B_MISSING"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if !lab.Inside() && !testing.Short() {
		dir, err := install()
		if err != nil {
			os.Setenv(missingEnv, err.Error())
		}
		os.Setenv(sdkEnv, dir)
	}
	code := labtest.Main(m)
	os.RemoveAll(built.dir)
	os.Exit(code)
}

// install downloads the SDK, unless an earlier run has.
func install() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "holdfast-test", "e2b-python-"+pythonSDK)
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
	text, err := exec.Command("python3", "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", "--target", part, "e2b=="+pythonSDK).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("installing e2b %s from PyPI: %w: %s", pythonSDK, err, text)
	}
	if err := os.Chmod(part, 0o755); err != nil {
		return "", err
	}
	return dir, os.Rename(part, dir)
}

// needSDK skips a test if the SDK could not be installed.
func needSDK(t *testing.T) string {
	t.Helper()
	if why := os.Getenv(missingEnv); why != "" {
		t.Skip(why)
	}
	dir := os.Getenv(sdkEnv)
	if dir == "" {
		t.Skip("needs E2B's SDK, which TestMain installs")
	}
	return dir
}
