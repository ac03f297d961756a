package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/platform/linux/proc"
)

// A process that joined a network namespace is named as the user of its table, and not
// the program that keeps the namespace open. If no other process joined, that program is
// named.
func TestNamespaceHolderIsNotNamed(t *testing.T) {
	root := t.TempDir()
	write := func(file, text string) {
		t.Helper()
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("sys/net/netfilter/nf_conntrack_max", "1000\n")
	for _, p := range []struct {
		pid        int
		comm, ns   string
		controlled string
	}{
		{100, "pause", "net:[1]", "aaaaaaaaaaaa"}, {200, "server", "net:[1]", "bbbbbbbbbbbb"}, {250, "child", "net:[1]", "cccccccccccc"},
		{300, "pause", "net:[2]", "dddddddddddd"},
	} {
		dir := fmt.Sprint(p.pid)
		write(dir+"/stat", fmt.Sprintf("%d (%s) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0", p.pid, p.comm))
		write(dir+"/cgroup", "0::/docker/"+p.controlled+"\n")
		write(dir+"/net/stat/nf_conntrack", "entries drop early_drop\n0000000a 0 0\n")
		if err := os.MkdirAll(filepath.Join(root, dir, "ns"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(p.ns, filepath.Join(root, dir, "ns/net")); err != nil {
			t.Fatal(err)
		}
	}
	tables, err := readConntrack(t.Context(), Host{Proc: proc.FS(root)})
	if err != nil {
		t.Fatal(err)
	}
	for ns, want := range map[string]struct {
		pid   int
		group string
	}{"net:[1]": {200, "/docker/bbbbbbbbbbbb"}, "net:[2]": {300, "/docker/dddddddddddd"}} {
		if s := tables[ns].subject; s.Pid != want.pid || s.Cgroup != want.group {
			t.Errorf("%s: process %d in %s, want %d in %s", ns, s.Pid, s.Cgroup, want.pid, want.group)
		}
	}
}
