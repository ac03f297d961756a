package cgroup_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

const hybrid = `23 1 254:0 / / rw - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime shared:9 - cgroup cgroup rw,freezer
38 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpuacct,cpu,xattr,release_agent=/x
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
42 31 0:38 /docker /mnt/with\040space rw,relatime - cgroup2 cgroup2 rw
`

func TestMountinfo(t *testing.T) {
	got, err := cgroup.ParseMountinfo([]byte(hybrid))
	want := cgroup.Mounts{
		{Point: "/sys/fs/cgroup/freezer", Root: "/", Controllers: []string{"freezer"}},
		{Point: "/sys/fs/cgroup/cpu,cpuacct", Root: "/", Controllers: []string{"cpu", "cpuacct"}},
		{Point: "/sys/fs/cgroup/systemd", Root: "/", Controllers: []string{"name=systemd"}},
		{Point: "/sys/fs/cgroup/unified", Root: "/", V2: true},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	got, err = cgroup.ParseMountinfo([]byte(`42 31 0:38 /a\040b /mnt\134x rw - cgroup2 cgroup2 rw`))
	if diff := cmp.Diff(cgroup.Mounts{{Point: `/mnt\x`, Root: "/a b", V2: true}}, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

// Of follows a process from /proc/pid/cgroup to directories, on every kind of
// host.
func TestOf(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for _, c := range []struct{ name, mounts, member, want string }{
		{"hybrid", hybrid, "9:name=systemd:/docker/" + id + "\n6:freezer:/docker/" + id + "\n4:cpu,cpuacct:/docker/" + id + "\n1:pids:/x\n0::/docker/" + id + "\n",
			"/sys/fs/cgroup/unified/docker/" + id + " /sys/fs/cgroup/systemd/docker/" + id + " /sys/fs/cgroup/freezer/docker/" + id + " /sys/fs/cgroup/cpu,cpuacct/docker/" + id},
		{"pure v2", "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/system.slice/docker-" + id + ".scope\n",
			"/sys/fs/cgroup/system.slice/docker-" + id + ".scope"},
		{"part of the tree is mounted", "41 31 0:38 /docker /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/docker/a\n", "/sys/fs/cgroup/a"},
		{"another part", "41 31 0:38 /docker /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/docker2/a\n", ""},
		{"outside our namespace", "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/../a\n", ""},
	} {
		ms, err := cgroup.ParseMountinfo([]byte(c.mounts))
		if err != nil {
			t.Fatal(err)
		}
		root := t.TempDir()
		if err := os.Mkdir(filepath.Join(root, "7"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "7", "cgroup"), []byte(c.member), 0o600); err != nil {
			t.Fatal(err)
		}
		gs, err := ms.Of(proc.FS(root), 7)
		var dirs []string
		for _, g := range gs {
			dirs = append(dirs, g.Dir())
		}
		if got := strings.Join(dirs, " "); err != nil || got != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.name, got, err, c.want)
		}
	}
}

func TestTopmost(t *testing.T) {
	g := cgroup.Group{Path: "/docker/0123/init.scope/0123"}
	if got, ok := g.Topmost(func(n string) bool { return n == "0123" }); !ok || got.Path != "/docker/0123" {
		t.Errorf("got %v, %v", got, ok)
	}
	if got, ok := g.Topmost(func(n string) bool { return n == "456" }); ok {
		t.Errorf("got %v", got)
	}
	if _, ok := (cgroup.Group{Path: "/"}).Topmost(func(string) bool { return true }); ok {
		t.Error("the root has no name, and must not match")
	}
}

func TestParseProcs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOf(rapid.IntRange(0, 1<<22)).Draw(t, "pids")
		var b []byte
		for _, p := range want {
			b = fmt.Appendf(b, "%d\n", p)
		}
		if got, err := cgroup.ParseProcs(b); err != nil || !slices.Equal(got, want) {
			t.Fatalf("got %v, %v, want %v", got, err, want)
		}
	})
	for _, bad := range []string{"1\n\n", "x\n", "-1\n", "1 2\n"} {
		if got, err := cgroup.ParseProcs([]byte(bad)); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

// For any input, every resulting path is absolute and below a mount.
func FuzzLocate(f *testing.F) {
	f.Add([]byte(hybrid), []byte("0::/a\n6:freezer:/b\n"))
	f.Add([]byte("41 31 0:38 /a /m rw - cgroup2 cgroup2 rw"), []byte("0::/a/../../b"))
	f.Add([]byte("41 31 0:38 / /m rw - cgroup cgroup rw,name=x"), []byte("1:name=x:/../.."))
	f.Add([]byte("41 31 0:38 \\057 /m\\0 rw - cgroup2"), []byte("::"))
	root := f.TempDir()
	if err := os.Mkdir(filepath.Join(root, "7"), 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, mounts, member []byte) {
		ms, err := cgroup.ParseMountinfo(mounts)
		if err != nil {
			return
		}
		if err := os.WriteFile(filepath.Join(root, "7", "cgroup"), member, 0o600); err != nil {
			t.Fatal(err)
		}
		gs, err := ms.Of(proc.FS(root), 7)
		if err != nil {
			return
		}
		for _, g := range gs {
			if !strings.HasPrefix(g.Path, "/") || filepath.Clean(g.Path) != g.Path {
				t.Errorf("path %q of %q", g.Path, member)
			}
		}
	})
}

func FuzzParseEvents(f *testing.F) {
	f.Add([]byte("populated 1\nfrozen 0\n"))
	f.Add([]byte("populated\n \n1 populated"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for k := range cgroup.ParseEvents(b) {
			if !strings.Contains(string(b), k+" ") {
				t.Errorf("%q is not in %q", k, b)
			}
		}
	})
}
