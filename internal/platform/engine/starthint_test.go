package engine

import (
	"strings"
	"testing"
)

// The messages are those of real engines, shortened.
func TestStartHint(t *testing.T) {
	for message, want := range map[string]string{
		"Error response from daemon: AppArmor enabled on system but the docker-default profile could not be loaded: exec: \"apparmor_parser\": executable file not found in $PATH":        "install the package apparmor",
		"runc create failed: unable to apply apparmor profile: apparmor failed to apply profile: write /proc/self/attr/apparmor/exec: no such file or directory":                          "install the package apparmor",
		"OCI runtime create failed: namespace {time } does not exist: unknown":                                                                                                            "runc 1.2",
		"runc create failed: unable to start container process: unshare: invalid argument":                                                                                                "kernel lacks",
		"OCI runtime create failed: no cgroup mount found in mountinfo: unknown":                                                                                                          "not mounted",
		"OCI runtime create failed: container_linux.go:380: cgroups: cannot find cgroup mount destination: unknown":                                                                       "not mounted",
		"OCI runtime create failed: openat2 /sys/fs/cgroup/pids/docker: no such file or directory":                                                                                        "controller",
		"driver failed programming external connectivity on endpoint x: iptables failed: iptables --wait -t nat -A DOCKER: iptables: No chain/target/match by that name.":                 "firewall",
		"failed to start shim: exec: \"runc\": executable file not found in $PATH":                                                                                                        "package runc",
		"OCI runtime create failed: unable to retrieve OCI runtime error (open /run/log.json: no such file or directory): fork/exec /nowhere/runtime: no such file or directory: unknown": "not installed",
		"runc create failed: unable to start container process: error during container init: exec: \"/trial\": stat /trial: permission denied":                                            "",
		"failed to create task for container: mkdir /run/containerd/io.containerd.runtime.v2.task/moby/x: no space left on device":                                                        "full",
	} {
		if got := startHint(message); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s:\n%q, not %q", message, got, want)
		}
	}
}
