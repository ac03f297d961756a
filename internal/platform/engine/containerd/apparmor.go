package containerd

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/apparmor"
	"github.com/containerd/containerd/v2/pkg/oci"
)

// appArmorProfile is the profile of containers on hosts with AppArmor. It is loaded into
// the kernel when the first container is created, and stays.
const appArmorProfile = "holdfast-default"

//go:embed apparmor.profile
var appArmorRules string

// withAppArmor confines a container on a host with AppArmor.
//
// containerd's contrib/apparmor would do the same, but it links text/template, and with it
// every exported method of every type (docs/adr/templates.md).
func withAppArmor(ctx context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	if !apparmor.HostSupports() {
		return nil
	}
	if err := loadAppArmor(ctx); err != nil {
		return fmt.Errorf("its AppArmor profile: %w", err)
	}
	s.Process.ApparmorProfile = appArmorProfile
	return nil
}

// loadAppArmor loads the profile if the kernel does not have it.
func loadAppArmor(ctx context.Context) error {
	loaded, err := os.ReadFile("/sys/kernel/security/apparmor/profiles") // a line is: name (mode)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(loaded) {
		if bytes.HasPrefix(line, []byte(appArmorProfile+" ")) {
			return nil
		}
	}
	parser := exec.CommandContext(ctx, "apparmor_parser", "--replace", "--skip-cache")
	parser.Stdin = strings.NewReader(appArmorText("/etc/apparmor.d", "/proc/self/attr/current"))
	if out, err := parser.CombinedOutput(); err != nil {
		return fmt.Errorf("apparmor_parser: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// appArmorText returns the profile for a host. dir has the host's include files, and the
// file own the name and mode of the agent's profile.
func appArmorText(dir, own string) string {
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	}
	head, base := "@{PROC}=/proc/", ""
	if has("tunables/global") {
		head = "#include <tunables/global>"
	}
	if has("abi/3.0") {
		head = "abi <abi/3.0>,\n" + head
	}
	if has("abstractions/base") {
		base = "#include <abstractions/base>"
	}
	current, _ := os.ReadFile(own) // without a profile the agent is unconfined
	agent, _, _ := strings.Cut(strings.TrimSpace(string(current)), " ")
	_, rules, _ := strings.Cut(appArmorRules, "\n\n") // the description has the words, too
	return head + "\n" + strings.NewReplacer("NAME", appArmorProfile, "DAEMON", cmp.Or(agent, "unconfined"), "BASE", base).Replace(rules)
}
