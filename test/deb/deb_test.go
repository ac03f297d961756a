package deb

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"holdfast/test/lab/labtest"
)

// maxProgram is the largest size of the program in bytes. A container image has it once for each
// release, and each agent has pages of it in memory.
const maxProgram = 40_000_000

// built has the packages of two versions. The first test that needs them builds them.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	code := labtest.Main(m)
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// packages returns the packages of v1.0.0 and v1.1.0, for this host.
func packages(t *testing.T) (first, second string) {
	t.Helper()
	arch := goArch(t)
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "holdfast-deb-"); built.err == nil {
			dist(t, filepath.Join(built.dir, "1"), "v1.0.0", nil, arch)
			dist(t, filepath.Join(built.dir, "2"), "v1.1.0", []string{"PROGRAMS=holdfast"}, arch)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return one(t, filepath.Join(built.dir, "1"), "package", arch), one(t, filepath.Join(built.dir, "2"), "package", arch)
}

// dist builds the packages of a version into a directory. env is for dist.sh.
func dist(t *testing.T, dir, version string, env []string, arch ...string) {
	t.Helper()
	for _, program := range []string{"holdfast/cmd/holdfast", "holdfast/cmd/holdfast-bench"} {
		if err := labtest.Uses(t.Context(), program); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "../../packaging/dev/dist.sh", arch...)
	cmd.Env = append(slices.Concat(os.Environ(), env), "DIST="+dir, "VERSION="+version)
	if !labtest.Long() {
		cmd.Env = append(cmd.Env, "COMPRESSION=none") // xz takes half a minute
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("dist.sh: %v\n%s", err, out)
	}
}

// host is a root directory with the parts of Debian that packages need: a shell, and dpkg's
// database.
type host struct {
	t    *testing.T
	root string
}

func newHost(t *testing.T) host {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root, dpkg and busybox, which make test installs")
	}
	h := host{t, t.TempDir()}
	for _, dir := range []string{"bin", "dev", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"} {
		if err := os.MkdirAll(h.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.write("var/lib/dpkg/status", "")
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.path("bin/busybox"), text, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh", "rm", "true"} {
		if err := os.Symlink("busybox", h.path("bin/"+name)); err != nil {
			t.Fatal(err)
		}
	}
	h.write("dev/null", "")
	return h
}

func (h host) path(name string) string { return filepath.Join(h.root, name) }

func (h host) write(name, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(h.path(name), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h host) read(name string) string {
	h.t.Helper()
	text, err := os.ReadFile(h.path(name))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(text)
}

func (h host) has(name string) bool {
	_, err := os.Lstat(h.path(name))
	return err == nil
}

// dpkg runs dpkg for the host. The scripts of packages run in the root directory.
func (h host) dpkg(args ...string) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), "dpkg", append([]string{"--root=" + h.root}, args...)...)
	cmd.Env = append(os.Environ(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		h.t.Fatalf("dpkg %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// one returns the only package, or image, for an architecture in a directory.
func one(t *testing.T, dir, what, arch string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, map[string]string{"package": "holdfast_*_" + arch + ".deb", "bench": "holdfast-bench_*_" + arch + ".deb", "image": "holdfast-image-" + arch + ".tar"}[what]))
	if err != nil || len(found) != 1 {
		t.Fatalf("%ss %v, %v", what, found, err)
	}
	return found[0]
}

// goArch returns the architecture of this host.
func goArch(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOHOSTARCH").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// The package is installed, upgraded, removed and purged. A changed configuration and the data
// stay until the purge.
func TestLifeOfThePackage(t *testing.T) {
	h := newHost(t)
	first, second := packages(t)
	h.dpkg("--install", first)
	for name, mode := range map[string]os.FileMode{
		"usr/bin/holdfast": 0o755, "etc/holdfast/holdfast.yaml": 0o600,
		"usr/lib/systemd/system/holdfast.service": 0o644, "usr/lib/systemd/system/holdfast-gc.service": 0o644,
		"usr/share/bash-completion/completions/holdfast": 0o644, "usr/share/zsh/vendor-completions/_holdfast": 0o644,
		"usr/share/fish/vendor_completions.d/holdfast.fish": 0o644, "usr/share/man/man1/holdfast-session-start.1.gz": 0o644,
		"usr/share/doc/holdfast/copyright": 0o644, "usr/share/doc/holdfast/examples/prometheus/holdfast.rules.yml": 0o644,
	} {
		info, err := os.Stat(h.path(name))
		if err != nil || info.Mode().Perm() != mode || info.Size() == 0 {
			t.Errorf("%s: %v, want mode %v (%v)", name, info, mode, err)
		}
	}
	h.isManualPage("usr/share/man/man1/holdfast.1.gz", `.TH "HOLDFAST" "1"`)
	h.isManualPage("usr/share/man/man1/holdfast-config-check.1.gz", "no-files")
	for _, name := range []string{"guardian", "man"} { // no commands of a user
		if _, err := os.Stat(h.path("usr/share/man/man1/holdfast-" + name + ".1.gz")); err == nil {
			t.Errorf("the package has a manual page of %q", name)
		}
	}
	if info, err := os.Stat(h.path("usr/bin/holdfast")); err != nil || info.Size() > maxProgram {
		t.Errorf("the program has %d bytes (%v), want at most %d: see docs/adr/size.md", info.Size(), err, maxProgram)
	}
	if got := h.holdfast("config", "check", "/etc/holdfast/holdfast.yaml"); got != "/etc/holdfast/holdfast.yaml is valid\n" {
		t.Errorf("the shipped configuration: %q", got)
	}
	if got := h.holdfast("version", "--socket", "/nowhere"); !strings.Contains(got, "v1.0.0") {
		t.Errorf("version %q", got)
	}

	h.benchIsBeside(one(t, filepath.Dir(first), "bench", goArch(t)))
	h.unitsAreGood()
	mine := "log: {level: warn}\n" + h.read("etc/holdfast/holdfast.yaml")
	h.write("etc/holdfast/holdfast.yaml", strings.Replace(mine, "\nlog:\n  level: info", "\n", 1))
	changed := h.read("etc/holdfast/holdfast.yaml")
	h.write("var/lib/holdfast/node", "n1\n")
	h.write("etc/holdfast/api.tokens", "ops 0123456789abcdef\n")
	h.dpkg("--install", "--force-confold", second)
	if got := h.holdfast("version", "--socket", "/nowhere"); !strings.Contains(got, "v1.1.0") {
		t.Errorf("after the upgrade: version %q", got)
	}
	if h.read("etc/holdfast/holdfast.yaml") != changed {
		t.Error("the upgrade has changed the configuration")
	}

	h.dpkg("--remove", "holdfast")
	if h.has("usr/bin/holdfast") || h.has("usr/lib/systemd/system/holdfast.service") {
		t.Error("the removal has left the program")
	}
	for _, name := range []string{"etc/holdfast/holdfast.yaml", "etc/holdfast/api.tokens", "var/lib/holdfast/node"} {
		if !h.has(name) {
			t.Errorf("the removal has taken %s", name)
		}
	}
	h.dpkg("--purge", "holdfast")
	for _, name := range []string{"etc/holdfast", "var/lib/holdfast", "run/holdfast", "usr/share/doc/holdfast"} {
		if h.has(name) {
			t.Errorf("the purge has left %s", name)
		}
	}
}

// benchIsBeside installs the package holdfast-bench, which `holdfast bench` then runs. Without
// the package, `holdfast bench` prints how to install it.
func (h host) benchIsBeside(pkg string) {
	h.t.Helper()
	bench := func() (int, string) {
		cmd := exec.CommandContext(h.t.Context(), "chroot", h.root, "/usr/bin/holdfast", "bench", "kill", "-n", "0")
		out, err := cmd.CombinedOutput()
		if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			h.t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	if code, out := bench(); code != 1 || !strings.Contains(out, "error: bench: holdfast-bench is not installed\nhint: install the package holdfast-bench") {
		h.t.Errorf("without the package: exit code %d\n%s", code, out)
	}
	h.dpkg("--install", pkg)
	h.isManualPage("usr/share/man/man1/holdfast-bench.1.gz", `.TH "HOLDFAST-BENCH" "1"`)
	if code, out := bench(); code != 2 || !strings.Contains(out, "hint: see `holdfast-bench kill --help`") {
		h.t.Errorf("with the package: exit code %d\n%s", code, out)
	}
	h.dpkg("--purge", "holdfast-bench")
}

// unitsAreGood makes systemd verify the installed units.
func (h host) unitsAreGood() {
	h.t.Helper()
	units, err := filepath.Glob(h.path("usr/lib/systemd/system/*.service"))
	if err != nil || len(units) < 4 {
		h.t.Fatalf("units %v, %v", units, err)
	}
	args := []string{"verify", "--root=" + h.root, "--recursive-errors=no"}
	for _, u := range units {
		args = append(args, filepath.Base(u))
	}
	if out, err := exec.CommandContext(h.t.Context(), "systemd-analyze", args...).CombinedOutput(); err != nil || len(out) > 0 {
		h.t.Errorf("systemd-analyze: %v\n%s", err, out)
	}
}

func (h host) isManualPage(name, begin string) {
	h.t.Helper()
	z, err := gzip.NewReader(strings.NewReader(h.read(name)))
	if err != nil {
		h.t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil || !bytes.Contains(text, []byte(begin)) || !bytes.Contains(text, []byte("SEE ALSO")) {
		h.t.Errorf("%s is no manual page: %v\n%.200s", name, err, text)
	}
}

// holdfast runs the installed program in the root directory.
func (h host) holdfast(args ...string) string {
	h.t.Helper()
	out, err := exec.CommandContext(h.t.Context(), "chroot", append([]string{h.root, "/usr/bin/holdfast"}, args...)...).Output()
	if err != nil {
		h.t.Fatalf("holdfast %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Two builds of one commit are the same, byte by byte, on both architectures.
func TestBuildsAreTheSame(t *testing.T) {
	labtest.NeedLong(t, "builds for two architectures, twice")
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	dist(t, a, "v1.0.0", nil)
	dist(t, b, "v1.0.0", nil)
	sums, err := os.ReadFile(filepath.Join(a, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile(filepath.Join(b, "SHA256SUMS"))
	if err != nil || !bytes.Equal(sums, again) {
		t.Errorf("%v\n%s\n%s", err, sums, again)
	}
	var names []string
	for line := range strings.Lines(string(sums)) {
		names = append(names, strings.Fields(line)[1])
	}
	if want := []string{"holdfast-bench-linux-amd64", "holdfast-bench-linux-arm64", "holdfast-bench_1.0.0_amd64.deb", "holdfast-bench_1.0.0_arm64.deb",
		"holdfast-image-amd64.tar", "holdfast-image-arm64.tar", "holdfast-linux-amd64", "holdfast-linux-arm64", "holdfast_1.0.0_amd64.deb", "holdfast_1.0.0_arm64.deb"}; !slices.Equal(names, want) {
		t.Errorf("built %v", names)
	}
}

// Lintian finds neither an error nor a warning. Intended exceptions are in
// packaging/deb/lintian-overrides, with the reason.
func TestLintian(t *testing.T) {
	labtest.NeedLong(t, "needs lintian, which make test-long installs")
	first, _ := packages(t)
	bench := one(t, filepath.Dir(first), "bench", goArch(t))
	out, err := exec.CommandContext(t.Context(), "lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", first, bench).CombinedOutput()
	if err != nil {
		t.Errorf("lintian: %v\n%s", err, out)
	}
}

// exposure returns the exposure level of a unit by systemd-analyze, in tenths.
func exposure(t *testing.T, name, text string) int {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".service")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--offline=yes", "--no-pager", path).Output()
	if err != nil {
		t.Fatalf("systemd-analyze: %v\n%s", err, out)
	}
	_, after, found := strings.Cut(string(out), "Overall exposure level for "+name+".service: ")
	var whole, tenths int
	if _, err := fmt.Sscanf(after, "%d.%d", &whole, &tenths); !found || err != nil {
		t.Fatalf("systemd-analyze says\n%s", out)
	}
	return 10*whole + tenths
}
