package doctor

import (
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/hosts/doctor"
)

// byBPF lists the checks that need BPF.
var byBPF = []string{"fadvise-storm", "kernel-lock", "stat-readers"}

// byFiles lists the checks that only need access to the host's files.
var byFiles = []string{"dying-cgroups", "throttling", "own-limit", "limits-near", "mount-leak", "old-kernel"}

func TestNotRoot(t *testing.T) {
	cmd := command(t, "", nil, "doctor", "--for", "1s", "--json")
	const nobodyID = 65534
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyID, Gid: nobodyID}}
	r := report(t, cmd)
	blind(t, r, "", append([]string{"slow-allocation"}, byBPF...)...)
	judged(t, r, "throttling", "old-kernel", "slow-machine")
	hinted := 0
	for _, g := range r.Gaps {
		if strings.Contains(g.Hint, "root") {
			hinted++
		}
	}
	if hinted < 3 {
		t.Errorf("gaps without hints: %+v", r.Gaps)
	}
}

// BPF is denied by seccomp, as in one container, and by missing capabilities, as in
// another.
func TestNoBPF(t *testing.T) {
	for _, role := range [][]string{{roleDeny, "bpf"}, {roleDrop, "sys_admin,bpf,perfmon"}} {
		r := report(t, command(t, "", role, "doctor", "--for", "1s", "--json"))
		blind(t, r, "BPF is not allowed", byBPF...)
		judged(t, r, byFiles...)
	}
}

// Without tracefs and perf events nothing is missing, because tracepoints are attached by
// name.
func TestNoPerfEventsNoTracefs(t *testing.T) {
	for _, role := range [][]string{{roleDeny, "perf_event_open"}, {roleHide, "/sys/kernel/tracing,/sys/kernel/debug"}} {
		r := report(t, command(t, "", role, "doctor", "--for", "1s", "--json"))
		judged(t, r, append(byFiles, byBPF...)...)
	}
}

// Without control groups the checks of containers are not judged, and the others are.
func TestNoControlGroups(t *testing.T) {
	r := report(t, command(t, "", []string{roleHide, "/sys/fs/cgroup"}, "doctor", "--for", "1s", "--json"))
	for _, name := range []string{"dying-cgroups", "throttling", "own-limit", "limits-near", "noisy-neighbour", "slow-allocation"} {
		if c := verdict(r, name); c.Verdict != doctor.NotJudged {
			t.Errorf("%+v", c)
		}
	}
	judged(t, r, "old-kernel", "mount-leak", "slow-machine")
}

// An engine that is absent or does not respond only affects the names.
func TestNoEngine(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	hanging, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer hanging.Close() // it accepts connections and never responds
	for _, host := range []string{"unix:///no/such/socket", "unix://" + socket} {
		r := report(t, command(t, host, nil, "doctor", "--for", "1s", "--json"))
		judged(t, r, byFiles...)
		found := false
		for _, g := range r.Gaps {
			found = found || g.Probe == "engine" && g.Why != ""
		}
		if !found {
			t.Errorf("%s: no gap about the engine: %+v", host, r.Gaps)
		}
	}
}
