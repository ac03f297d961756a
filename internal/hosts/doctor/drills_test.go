package doctor_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/lab/labtest"
	"holdfast/test/vm"
	"holdfast/test/vm/vmtest"
)

// onDisk returns a directory on a disk; t.TempDir may not be on one.
func onDisk(t *testing.T) string {
	t.Helper()
	base := vmtest.Disk
	if !vmtest.Inside() {
		daemon, _ := labtest.Either(t)
		base = daemon.Scratch()
	}
	dir := filepath.Join(base, t.Name())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// inMachine holds the drills that work in the emulated machine, and their sizes there; 0
// is the default. Moving a process to another group is slow in that machine.
var inMachine = map[string]int{"zombies": 200, "throttle": 2, "neighbour": 2, "dentries": 1_100_000, "fadvise": 0, "thrash": 0, "conntrack": 0, "leak": 0, "files": 0, "backlog": 0, "datagrams": 0, "blackhole": 0, "hung-mount": 0}

// Every drill in a control group is found, and its group is named. On a shared kernel the
// drills slow other tests, so without -long they run only in the machine. The table of
// test/doctor covers the others: the program itself finds them, in containers.
func TestDrills(t *testing.T) {
	if !vmtest.Inside() {
		labtest.NeedLong(t, "slows other tests on this kernel; TestInMachine runs some of the drills")
		labtest.Engine(t)
	}
	for _, d := range drill.All() {
		t.Run(d.Name, func(t *testing.T) {
			o, err := options(onDisk(t))
			if err != nil {
				t.Fatal(err)
			}
			if vmtest.Inside() {
				size, ok := inMachine[d.Name]
				if !ok {
					return
				}
				o.Size = size
			}
			var created string
			during(t, d, o, func(at drill.Running) {
				created = at.Group
				var e doctor.Examination
				if vmtest.Inside() {
					e.Probes = quietProbes()
				}
				if d.Name == "hung-mount" { // a shorter wait is no finding
					e.For = 10 * time.Second
					if vmtest.Inside() { // where opening all probes may leave less of it
						e.Probes = slices.DeleteFunc(e.Probes, func(p probe.Probe) bool { return p.Name != "stuck" })
					}
				}
				r := examine(t, e)
				group := at.Group
				if d.Name == "zombies" { // other parents may have more dying groups
					group = ""
				}
				f := find(r, at.Rule, group)
				if f == nil && d.Name == "neighbour" && find(r, at.Rule, "/") != nil {
					t.Logf("other processes on this machine use more CPU:\n%s", explain(r, at.Rule, at.Group))
					return
				}
				if f == nil {
					t.Fatalf("no finding %s that names %s:\n%s", at.Rule, group, explain(r, at.Rule, at.Group))
				}
				if len(f.Cures) == 0 || len(f.Evidence) == 0 {
					t.Errorf("a finding without a cure or evidence: %+v", f)
				}
				switch d.Name {
				case "zombies":
					// The few groups in the machine may be missed by the sample.
					if !vmtest.Inside() && !pinsBelow(r, at.Group) {
						t.Errorf("the pages of dying groups are not observed below %s:\n%s", at.Group, explain(r, at.Rule, at.Group))
					}
				case "fadvise":
					if !strings.Contains(strings.Join(f.Subject.Kernel, " "), "fadvise64") || !strings.Contains(f.Title, "posix_fadvise") {
						t.Errorf("the call is not named: %s, %v", f.Title, f.Subject.Kernel)
					}
				case "conntrack":
					if f.Subject.Pid == 0 || !strings.HasPrefix(f.Culprit.Device, "net:[") {
						t.Errorf("the namespace is not named: %+v, %+v", f.Subject, f.Culprit)
					}
				case "pinned":
					if f.Subject.Pid == 0 || !strings.Contains(f.Subject.Command, drill.Role) {
						t.Errorf("the process is not named: %+v", f.Subject)
					}
				case "neighbour":
					if len(f.Against) == 0 || !strings.HasSuffix(f.Against[0].Cgroup, "/victim") {
						t.Errorf("the victim is not named: %+v", f.Against)
					}
				}
			})
			nothingLeft(t, o.Dir, created)
		})
	}
}

// pinsBelow reports whether pages of dying groups were observed below a group.
func pinsBelow(r doctor.Report, group string) bool {
	for _, f := range r.Facts {
		if f.Name == fact.MemcgPins && within(f.Subject.Cgroup, group) {
			return true
		}
	}
	return false
}

// nothingLeft checks that a drill has removed its files and groups.
func nothingLeft(t *testing.T, dir, group string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) > 0 {
		t.Errorf("files left in the drill's directory: %v, %v", files, err)
	}
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	stage, _, _ := strings.Cut(strings.TrimPrefix(group, "/"), "/")
	left, err := groups.Search(func(name string) bool { return name == stage })
	if err != nil || len(left) > 0 {
		t.Errorf("control groups left: %v, %v", left, err)
	}
}

// quietProbes returns the probes that do not load the machine.
func quietProbes() []probe.Probe {
	return slices.DeleteFunc(probe.All(), func(p probe.Probe) bool { return p.Busy })
}

// In containers of a real engine the drill's container is named, and unrelated containers
// are not.
func TestDrillsInContainers(t *testing.T) {
	labtest.NeedLong(t, "test/doctor has the same drills in containers")
	_, api := labtest.Either(t)
	innocent := make(map[string]bool)
	for range 4 {
		id, err := api.Create(t.Context(), engine.Spec{Image: labtest.Busybox, Network: "none"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := api.Remove(context.Background(), id); err != nil {
				t.Error(err)
			}
		})
		if err := api.Start(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		innocent[id] = true
	}
	worker := staticWorker(t)
	for _, d := range drill.All() {
		// Without a weight, the result of neighbour depends on the load of this machine.
		// Millions of names take a minute in a container.
		if !d.Containers || d.Name == "neighbour" || d.Name == "dentries" {
			continue
		}
		t.Run(d.Name, func(t *testing.T) {
			o, err := options(onDisk(t))
			if err != nil {
				t.Fatal(err)
			}
			o.Worker, o.Image, o.Engine = []string{worker, drill.Role}, labtest.Busybox, api
			during(t, d, o, func(at drill.Running) {
				r := examine(t, doctor.Examination{Engine: api})
				f := findContainer(r, at.Rule, at.Container)
				if f == nil {
					t.Fatalf("no finding %s that names %s:\n%s", at.Rule, at.Container, explain(r, at.Rule, at.Group))
				}
				if f.Subject.Image != labtest.Busybox {
					t.Errorf("image %q, want %q", f.Subject.Image, labtest.Busybox)
				}
				for _, f := range r.Findings {
					if f.Subject != nil && innocent[f.Subject.ContainerID] {
						t.Errorf("an unrelated container is named: %s: %+v", f.Rule, f.Subject)
					}
				}
				if d.Name == "throttle" && !strings.Contains(f.Cures[0].Command, at.Container) {
					t.Errorf("the cure does not name the container: %q", f.Cures[0].Command)
				}
			})
			left, err := api.List(t.Context(), map[string]string{drill.Label: ""})
			if err != nil || len(left) > 0 {
				t.Errorf("containers left: %v, %v", left, err)
			}
		})
	}
}

// A healthy host has no findings, and the drills are found with cgroup v2 only. The test
// uses a kernel of its own, without other load. It does not test the raw machine, because
// the machine is emulated.
func TestInMachine(t *testing.T) {
	c := vm.Config{Modules: []string{"nf_conntrack", "nf_conntrack_netlink", "fuse"}}
	vmtest.AddDisk(t, &c)
	drills := "zombies|throttle|conntrack|hung-mount"
	if labtest.Long() {
		drills += "|fadvise|neighbour|thrash|dentries"
	}
	vmtest.Run(t, "^(TestHealthyHost|TestDrills)$/^("+drills+")$", c)
	if labtest.Long() {
		vmtest.Run(t, "^TestDrillsFromPod$", c)
	}
}

// On v2 a container has a control group namespace of its own. An examination from inside,
// with the host's groups mounted as in the DaemonSet's agent, has the same findings:
// subjects known by their directory and subjects known by a process.
func TestDrillsFromPod(t *testing.T) {
	if !vmtest.Inside() {
		return
	}
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := groups.Memory()
	if !ok || !m.V2 {
		t.Fatalf("no v2 with the memory controller: %+v", groups)
	}
	pod := filepath.Join(m.Point, "kubepods", "pod", "agent")
	if err := os.MkdirAll(pod, 0o755); err != nil {
		t.Fatal(err)
	}
	// A process that is cloned with a new namespace has its parent's group as the
	// namespace's root.
	if err := os.WriteFile(filepath.Join(pod, "cgroup.procs"), []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(filepath.Join(m.Point, "cgroup.procs"), []byte("0"), 0); err != nil {
			t.Error(err)
		}
	})
	examination := exec.Command("/proc/self/exe", "-test.v", "-test.run=^TestDrills$/^(zombies|neighbour)$")
	examination.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWCGROUP}
	out, err := examination.CombinedOutput()
	if err != nil || strings.Count(string(out), "--- PASS: TestDrills/") != 2 {
		t.Errorf("in its own cgroup namespace: %v\n%s", err, out)
	}
}

func TestHealthyHost(t *testing.T) {
	if !vmtest.Inside() {
		return // this host may be busy; TestInMachine runs the test
	}
	r := examine(t, doctor.Examination{Probes: quietProbes()})
	for _, f := range r.Findings {
		t.Errorf("found on a healthy host: %s: %s, %+v, %+v", f.Rule, f.Title, f.Evidence, f.Subject)
	}
	fine := 0
	for _, c := range r.Checked {
		if c.Verdict == doctor.Fine {
			fine++
		}
		t.Logf("%+v", c)
	}
	if fine < 12 {
		t.Errorf("only %d checks are fine, want at least 12", fine)
	}
}

// The processes of a killed drill die with it, and Sweep removes the rest.
func TestDrillKilled(t *testing.T) {
	dir := onDisk(t)
	cmd := exec.Command("/proc/self/exe", roleDrill, "throttle", dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	group, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	group = strings.TrimSpace(group)
	if err := cmd.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		alive := 0
		for _, m := range groups {
			pids, err := cgroup.Group{Point: m.Point, Path: group, V2: m.V2, Controllers: m.Controllers}.Procs()
			if err != nil {
				t.Fatal(err)
			}
			alive += len(pids)
		}
		if alive == 0 {
			break
		}
		if time.Since(begin) > 20*time.Second {
			t.Fatalf("%d processes of the drill are still alive", alive)
		}
	}
	o, err := options(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := drill.Sweep(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	left, err := groups.Search(func(name string) bool { return "/"+name+"/worker" == group })
	if err != nil || len(left) > 0 {
		t.Errorf("control groups left: %v, %v", left, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("files left: %v, %v", files, err)
	}
}
