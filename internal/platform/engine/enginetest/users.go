package enginetest

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
)

// users has the forms of a Dockerfile's USER, each with the user, the group and all
// groups of the container's process.
func (s *suite) users(t *testing.T) {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("%v (apt-get install busybox-static)", err)
	}
	files := map[string][]byte{
		"bin/busybox": busybox,
		"etc/passwd":  []byte("root:x:0:0::/:\napp:x:1000:1001::/:\nother:x:2000:2001::/:\n"),
		"etc/group":   []byte("app:x:1001:\nvideo:x:44:other,app\naudio:x:29:app\n"),
	}
	without := map[string][]byte{"bin/busybox": busybox}
	for _, c := range []struct {
		user  string
		files map[string][]byte
		want  string // "" if there is no such user
	}{
		{"", files, "0 0 0"},
		{"root", files, "0 0 0"},
		{"app", files, "1000 1001 29 44 1001"},
		{"1000", files, "1000 1001 29 44 1001"},
		{"app:video", files, "1000 44 44"},
		{"app:7", files, "1000 7 7"},
		{"3000", files, "3000 0 0"},
		{"3000:3001", without, "3000 3001 3001"},
		{"missing", files, ""},
		{"app:missing", files, ""},
		{"app", without, ""},
		{"4294967296", files, ""},
	} {
		ref := fmt.Sprintf("enginetest-user:%d", s.names.Add(1))
		config := map[string]any{"User": c.user, "Entrypoint": []string{"/bin/busybox"}, "Cmd": []string{"sh", "-c", "while :; do /bin/busybox sleep 1; done"}}
		if err := s.Engine.Load(s.context(t), bytes.NewReader(archiveOf(t, ref, c.files, config))); err != nil {
			t.Fatal(err)
		}
		spec := s.spec()
		spec.Image = ref
		if c.want == "" {
			id, err := s.Engine.Create(s.context(t), spec)
			if err == nil {
				err = s.Engine.Start(s.context(t), id) // Docker looks a user up at the start
				_ = s.Engine.Remove(s.context(t), id)
			}
			if err == nil {
				t.Errorf("a container of user %q starts", c.user)
			}
			continue
		}
		if got := identity(t, s.inspect(t, s.start(t, spec)).Pid); got != c.want {
			t.Errorf("user %q: %q, wanted %q", c.user, got, c.want)
		}
	}
}

// identity returns the effective user and group of a process, and all its groups in order.
func identity(t *testing.T, pid int) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || pid <= 0 {
		t.Fatal(pid, err)
	}
	field := func(name string) []string {
		_, rest, _ := strings.Cut(string(status), "\n"+name+":")
		line, _, ok := strings.Cut(rest, "\n")
		if !ok {
			t.Fatalf("no %s in %s", name, status)
		}
		return strings.Fields(line)
	}
	return strings.Join(append([]string{field("Uid")[1], field("Gid")[1]}, field("Groups")...), " ")
}
