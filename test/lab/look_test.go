package lab_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"holdfast/test/lab"
)

// look describes everything that a user can see of an engine and its host.
func look(t *testing.T, e *lab.Engine) map[string]string {
	t.Helper()
	api, err := client.New(client.WithHost(e.Host()))
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	containers, err := api.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	images, err := api.ImageList(t.Context(), client.ImageListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	networks, err := api.NetworkList(t.Context(), client.NetworkListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{"processes": own(t), "mounts": mounts(t), "interfaces": interfaces(t)}
	var lines []string
	for _, c := range containers.Items {
		full, err := api.ContainerInspect(t.Context(), c.ID, client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s := full.Container.State
		lines = append(lines, fmt.Sprintln(c.Names, c.ID, s.Status, s.Pid, s.StartedAt, full.Container.RestartCount))
	}
	seen["containers"] = sorted(lines)
	lines = nil
	for _, i := range images.Items {
		lines = append(lines, fmt.Sprintln(i.ID, i.RepoTags))
	}
	seen["images"] = sorted(lines)
	lines = nil
	for _, n := range networks.Items {
		lines = append(lines, fmt.Sprintln(n.ID, n.Name, n.Driver, n.IPAM.Config))
	}
	seen["networks"] = sorted(lines)
	for _, table := range []string{"nat", "filter"} {
		rules, err := exec.Command("/usr/sbin/iptables", "-t", table, "-S").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, rules)
		}
		seen["rules of "+table] = string(rules)
	}
	return seen
}

func sorted(lines []string) string {
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func file(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func interfaces(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir("/proc/sys/net/ipv4/conf")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name()+"\n")
	}
	return sorted(names)
}

// own lists the engine's processes in this pid namespace and in its containers: daemon,
// containerd, shims, containers. Other processes of this test start and end.
func own(t *testing.T) string {
	t.Helper()
	self, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, pid := range processesIn(t, self) {
		comm, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
		if err == nil && (strings.HasPrefix(string(comm), "dockerd") || strings.HasPrefix(string(comm), "containerd")) {
			lines = append(lines, pid+" "+string(comm))
		}
	}
	return sorted(lines)
}

// processesIn returns the processes of a pid namespace, by their pids in this one.
func processesIn(t *testing.T, namespace string) []string {
	t.Helper()
	return processesBy(t, "pid", namespace)
}

func processesBy(t *testing.T, kind, namespace string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/ns/" + kind)
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for _, link := range links {
		if ns, err := os.Readlink(link); err == nil && ns == namespace {
			pids = append(pids, strings.Split(link, "/")[2])
		}
	}
	return pids
}

// gone waits until a lab is gone: no process in its pid namespace or network, no mount here,
// and no process that holds its network.
func gone(t *testing.T, r report) {
	t.Helper()
	left := func() []string {
		pids := append(processesBy(t, "pid", r.PIDs), processesBy(t, "net", r.Net)...)
		fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if target, err := os.Readlink(fd); err == nil && target == r.Net {
				pids = append(pids, fd)
			}
		}
		return pids
	}
	for deadline := time.Now().Add(time.Minute); len(left()) > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("of a lab that has ended live on: %v", left())
		}
		time.Sleep(5 * time.Millisecond)
	}
	table := file(t, "/proc/self/mountinfo")
	if strings.Contains(table, r.Dir) || strings.Contains(table, r.Net) {
		t.Errorf("mounts of a lab that has ended:\n%s", table)
	}
}

// mounts returns the table of mounts without those of concurrent tests, which are in other
// directories.
func mounts(t *testing.T) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(file(t, "/proc/self/mountinfo")) {
		if !strings.Contains(line, "/Test") || strings.Contains(line, "/"+t.Name()) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// cleaned checks that a lab's directory and cgroups are gone.
func cleaned(t *testing.T, r report) {
	t.Helper()
	if _, err := os.Stat(r.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("data directory %s: %v", r.Dir, err)
	}
	if left := cgroupsNamed(t, filepath.Base(r.Dir)); len(left) > 0 {
		t.Errorf("cgroups left: %v", left)
	}
}

// cgroupsNamed returns the top-level cgroups of a name, in every hierarchy.
func cgroupsNamed(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		dirs, err := filepath.Glob(pattern + name)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, dirs...)
	}
	return found
}
