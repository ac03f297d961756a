package enginetest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/platform/engine"
)

// Limits as a container sees them, on cgroup v1 and on v2.
const (
	readMemory = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max"
	readPIDs   = "cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max"
	readCPU    = "echo $(cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.cfs_period_us 2>/dev/null || cat /sys/fs/cgroup/cpu.max)"
)

func (s *suite) limits(t *testing.T) {
	spec := s.spec()
	spec.Memory, spec.CPUs, spec.PIDs = 64<<20, 0.5, 42
	id := s.start(t, spec)
	for script, want := range map[string]string{readMemory: "67108864", readPIDs: "42", readCPU: "50000 100000"} {
		if got := s.shell(t, id, script); got != want {
			t.Errorf("%s: %q, wanted %q", script, got, want)
		}
	}
}

func (s *suite) noLimits(t *testing.T) {
	id := s.start(t, s.spec())
	if got := s.shell(t, id, readMemory); got != "max" && len(got) < len("1000000000000000") {
		t.Errorf("memory is limited to %s", got)
	}
	if got := s.shell(t, id, readPIDs); got != "max" {
		t.Errorf("pids are limited to %s", got)
	}
	if got := s.shell(t, id, readCPU); !strings.HasPrefix(got, "-1 ") && !strings.HasPrefix(got, "max ") {
		t.Errorf("CPU is limited to %s", got)
	}
}

func (s *suite) privileges(t *testing.T) {
	const flag = "grep NoNewPrivs /proc/1/status | tr -dc 0-9"
	plain := s.start(t, s.spec())
	if got := s.shell(t, plain, flag); got != "0" {
		t.Errorf("no-new-privileges by default: %q", got)
	}
	if got := s.shell(t, plain, "cat /proc/1/comm"); got != "sleep" {
		t.Errorf("pid 1 by default is %q", got)
	}
	spec := s.spec()
	spec.NoNewPrivileges, spec.Init = true, true
	id := s.start(t, spec)
	if got := s.shell(t, id, flag); got != "1" {
		t.Errorf("no-new-privileges: %q", got)
	}
	if got := s.shell(t, id, "cat /proc/1/comm"); got == "sleep" || got == "" {
		t.Errorf("pid 1 with an init is %q", got)
	}
}

// A given profile replaces the engine's. A missing file, or one that is not a
// profile, is an error before anything is made.
func (s *suite) seccomp(t *testing.T) {
	const mode = "grep '^Seccomp:' /proc/1/status | tr -dc 0-9"
	profile := filepath.Join(t.TempDir(), "p.json")
	// mkdir(2) returns success and does nothing.
	text := `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 0}]}`
	if err := os.WriteFile(profile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := s.spec()
	spec.Seccomp = profile
	id := s.start(t, spec)
	if got := s.shell(t, id, mode); got != "2" {
		t.Errorf("the mode is %q", got)
	}
	if got := s.shell(t, id, "mkdir /made && ls -d /made 2>/dev/null || echo nothing"); got != "nothing" {
		t.Errorf("mkdir made %q", got)
	}
	if err := os.WriteFile(profile, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{profile, profile + ".none"} {
		spec.Seccomp = file
		if id, err := s.Engine.Create(t.Context(), spec); err == nil {
			t.Errorf("%s is taken, by %s", file, id)
		}
	}
}

func (s *suite) mounts(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("from the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := s.spec()
	spec.Mounts = []engine.Mount{
		{Type: "bind", Source: dir, Target: "/rw"},
		{Type: "bind", Source: dir, Target: "/ro", ReadOnly: true},
		{Type: "volume", Target: "/anonymous"},
		{Type: "tmpfs", Target: "/memory"},
	}
	id := s.start(t, spec)
	if got := s.shell(t, id, "cat /ro/file"); got != "from the host" {
		t.Errorf("a file of the host: %q", got)
	}
	s.shell(t, id, "echo written > /rw/new")
	if got, err := os.ReadFile(filepath.Join(dir, "new")); err != nil || string(got) != "written\n" {
		t.Errorf("what was written to a bind: %q, %v", got, err)
	}
	if got := s.shell(t, id, "touch /ro/x 2>/dev/null && echo yes || echo no"); got != "no" {
		t.Error("a read-only bind can be written to")
	}
	if got := s.shell(t, id, "grep ' /memory ' /proc/mounts | cut -d' ' -f3"); got != "tmpfs" {
		t.Errorf("the file system of a tmpfs is %q", got)
	}
	s.shell(t, id, "echo x > /anonymous/x && echo x > /memory/x")
}

func (s *suite) networks(t *testing.T) {
	owner := s.start(t, s.spec())
	addresses := s.inspect(t, owner).Addresses
	if len(addresses) == 0 {
		t.Fatal("no address in the default network")
	}
	inside := s.shell(t, owner, "ip -o addr")
	for _, a := range addresses {
		if !strings.Contains(inside, " "+a+"/") {
			t.Errorf("address %s is not one of %s", a, inside)
		}
	}

	joined := s.spec()
	joined.Network = "container:" + owner
	second := s.start(t, joined)
	if got := s.inspect(t, second).Addresses; !slices.Equal(got, addresses) {
		t.Errorf("addresses of a joined network: %v, wanted %v", got, addresses)
	}
	if a, b := s.shell(t, owner, "readlink /proc/1/ns/net"), s.shell(t, second, "readlink /proc/1/ns/net"); a != b {
		t.Errorf("network namespaces %s and %s are to be one", a, b)
	}

	if err := s.Engine.Remove(s.context(t), owner); err != nil {
		t.Fatal(err)
	}
	if c := s.inspect(t, second); !c.Running() || c.Network != joined.Network || len(c.Addresses) != 0 {
		t.Errorf("after the end of the container that it joined: %+v", c)
	}

	byName := s.spec()
	byName.Network = "bridge"
	if c := s.inspect(t, s.start(t, byName)); len(c.Addresses) == 0 {
		t.Errorf("no address in the default network, called by its name: %+v", c)
	}

	for _, mode := range []string{"none", "host"} {
		spec := s.spec()
		spec.Network = mode
		c := s.inspect(t, s.start(t, spec))
		if len(c.Addresses) != 0 || c.Network != mode {
			t.Errorf("network %s: mode %q, addresses %v", mode, c.Network, c.Addresses)
		}
	}
}

func (s *suite) pidModes(t *testing.T) {
	owner := s.start(t, s.spec())
	own := s.inspect(t, owner)
	if own.PIDMode != "" {
		t.Errorf("pid mode by default: %q", own.PIDMode)
	}
	namespace := func(id string) string {
		link, err := os.Readlink("/proc/" + itoa(s.inspect(t, id).Pid) + "/ns/pid")
		if err != nil {
			t.Fatal(err)
		}
		return link
	}
	joined := s.spec()
	joined.PIDMode = "container:" + owner
	second := s.start(t, joined)
	if c := s.inspect(t, second); c.PIDMode != joined.PIDMode {
		t.Errorf("pid mode %q, wanted %q", c.PIDMode, joined.PIDMode)
	}
	if a, b := namespace(owner), namespace(second); a != b {
		t.Errorf("pid namespaces %s and %s are to be one", a, b)
	}
	host := s.spec()
	host.PIDMode = "host"
	third := s.start(t, host)
	if c := s.inspect(t, third); c.PIDMode != "host" {
		t.Errorf("pid mode %q, wanted host", c.PIDMode)
	}
	if self, err := os.Readlink("/proc/self/ns/pid"); err != nil || namespace(third) != self {
		t.Errorf("pid namespace %s is to be the host's %s (%v)", namespace(third), self, err)
	}
}
