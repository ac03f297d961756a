package containerd_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"holdfast/internal/platform/engine/containerd"
	"holdfast/test/lab/labtest"
	"holdfast/test/vm"
	"holdfast/test/vm/vmtest"
)

// The parser accepts the profile, with and without the host's include files.
func TestAppArmorText(t *testing.T) {
	own := filepath.Join(t.TempDir(), "current")
	if err := os.WriteFile(own, []byte("the-agent (enforce)\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, wants := range map[string][]string{
		"/etc/apparmor.d": {"#include <tunables/global>", "#include <abstractions/base>", "profile " + containerd.AppArmorProfile + " flags", "peer=the-agent,"},
		t.TempDir():       {"@{PROC}=/proc/\n", "peer=the-agent,"},
	} {
		text := containerd.AppArmorText(dir, own)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q is missing", dir, want)
			}
		}
		parser := exec.Command("/sbin/apparmor_parser", "--skip-kernel-load", "--skip-cache")
		parser.Stdin = strings.NewReader(text)
		if out, err := parser.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", dir, err, out)
		}
	}
	if text := containerd.AppArmorText(t.TempDir(), "/nowhere"); !strings.Contains(text, "peer=unconfined,") {
		t.Error("an agent without a profile cannot signal its containers")
	}
}

// The lab's kernel may have no AppArmor; the emulated machine's kernel has it.
func TestAppArmorInMachine(t *testing.T) {
	labtest.NeedLong(t, "a virtual machine for one profile; hosts with AppArmor are among those of make test-hosts")
	files := map[string]string{}
	for _, f := range []string{"/sbin/apparmor_parser", "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2", "/lib/aarch64-linux-gnu/libc.so.6", "/lib/ld-linux-aarch64.so.1"} {
		if _, err := os.Stat(f); err == nil {
			files[f] = f
		}
	}
	vmtest.Run(t, "^TestAppArmor$", vm.Config{Files: files, Busybox: []string{"sh", "mount", "umount", "cat"}})
}

// On a host with AppArmor a container gets the profile, which is loaded. The profile
// denies mounts and writes to kernel settings. On a host without AppArmor a container
// gets none.
func TestAppArmor(t *testing.T) {
	if vmtest.Inside() {
		t.Setenv("PATH", "/sbin:/bin")
		if err := unix.Mount("securityfs", "/sys/kernel/security", "securityfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	_, err := os.Stat("/sys/kernel/security/apparmor")
	if err != nil && (vmtest.Inside() || !errors.Is(err, fs.ErrNotExist)) {
		t.Fatal(err)
	}
	s := &oci.Spec{Process: &specs.Process{}}
	for range 2 { // the second time it is loaded
		if err := containerd.WithAppArmor(t.Context(), nil, nil, s); err != nil {
			t.Fatal(err)
		}
	}
	if err != nil {
		if s.Process.ApparmorProfile != "" {
			t.Errorf("without AppArmor the profile is %q", s.Process.ApparmorProfile)
		}
		return
	}
	if s.Process.ApparmorProfile != containerd.AppArmorProfile {
		t.Fatalf("the profile is %q", s.Process.ApparmorProfile)
	}
	if !vmtest.Inside() {
		return // TestAppArmorInMachine tests its effect
	}
	text, err := os.ReadFile("/sys/kernel/security/apparmor/profiles")
	if err != nil || !strings.Contains(string(text), containerd.AppArmorProfile+" (enforce)") {
		t.Fatalf("profiles %q, %v", text, err)
	}
	dir := t.TempDir()
	denied := []string{"mount -t tmpfs none " + dir + " && umount " + dir, "echo x > /proc/sys/kernel/hostname", "cat /sys/kernel/security/apparmor/profiles"}
	scripts := map[string]bool{"cat /proc/sys/kernel/hostname": true, "echo x > " + dir + "/file": true}
	for _, s := range denied {
		scripts[s] = false
	}
	for script, allowed := range scripts {
		confined := `echo "exec ` + containerd.AppArmorProfile + `" > /proc/self/attr/apparmor/exec && exec sh -c '` + script + `'`
		out, err := exec.Command("sh", "-c", confined).CombinedOutput()
		if (err == nil) != allowed {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
	for _, script := range denied {
		if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
			t.Errorf("without the profile: %s: %v\n%s", script, err, out)
		}
	}
}
