package nsmount

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/deathsig"
)

// other is a shell in its own mount namespace and root.
type other struct {
	t   *testing.T
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Reader
}

func start(t *testing.T) *other {
	t.Helper()
	if os.Geteuid() != 0 && testing.Short() {
		t.Skip("-short without root: mount namespaces need root")
	}
	// pivot_root: a root of its own, which a chroot would not be.
	cmd := exec.Command("/bin/sh", "-c", `mount --make-rprivate / && mount -t tmpfs new "$0" && cd "$0" &&
		mkdir bin lib lib64 usr proc old && for d in bin lib lib64 usr; do mount --rbind /$d $d; done && mount -t proc proc proc &&
		pivot_root . old && umount -l /old && echo up && while read x; do eval "$x"; echo; echo done; done`, t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stderr = r, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ended, err := deathsig.Start(cmd, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	t.Cleanup(func() {
		w.Close()
		<-ended // with its last command's code
	})
	o := &other{t: t, cmd: cmd, in: w, out: bufio.NewReader(out)}
	if line, err := o.out.ReadString('\n'); err != nil || line != "up\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return o
}

func (o *other) run(script string) string {
	o.t.Helper()
	if _, err := fmt.Fprintln(o.in, script); err != nil {
		o.t.Fatal(err)
	}
	var out strings.Builder
	for {
		line, err := o.out.ReadString('\n')
		if err != nil {
			o.t.Fatalf("%s: %v", script, err)
		}
		if line == "done\n" {
			return strings.TrimSpace(out.String())
		}
		out.WriteString(line)
	}
}

func TestAttach(t *testing.T) {
	o := start(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"rw/file": "hello", "ro/file": "read me", "single": "one file"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	o.run("mkdir /real && ln -s /real /link && ln -s /../../../../etc /out")
	if err := Attach(o.cmd.Process.Pid, []Mount{
		{Source: filepath.Join(dir, "rw"), Target: "/made/just/now"},
		{Source: filepath.Join(dir, "ro"), Target: "/link/below", ReadOnly: true},
		{Source: filepath.Join(dir, "single"), Target: "/single"},
	}); err != nil {
		t.Fatal(err)
	}
	for script, want := range map[string]string{
		"cat /made/just/now/file":                                 "hello",
		"cat /real/below/file":                                    "read me",
		"cat /single":                                             "one file",
		"echo x > /real/below/new || echo no":                     "no",
		"echo written > /made/just/now/new && echo yes":           "yes",
		"grep -c ' /made/just/now .*shared' /proc/self/mountinfo": "0",
	} {
		if got := o.run("(" + script + ") 2>&-"); got != want {
			t.Errorf("%s: %q, wanted %q", script, got, want)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "rw/new")); err != nil || string(text) != "written\n" {
		t.Errorf("what was written there is %q here, %v", text, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), "/made/just/now") {
		t.Errorf("it is mounted here, too: %v", err)
	}
	// Symbolic links in a target are resolved in the process's root.
	if err := Attach(o.cmd.Process.Pid, []Mount{{Source: filepath.Join(dir, "rw"), Target: "/out/holdfast-test"}}); err == nil {
		t.Error("a link out of the root was followed")
	}
	if _, err := os.Stat("/etc/holdfast-test"); err == nil {
		t.Error("a directory was made outside of the root")
	}
}

// TestAttachKeepsNamespaces checks that this process stays in its mount namespace, with its
// first thread, which never ends and which /proc/self describes.
func TestAttachKeepsNamespaces(t *testing.T) {
	o := start(t)
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for round := range 20 {
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				if err := Attach(o.cmd.Process.Pid, []Mount{{Source: dir, Target: fmt.Sprintf("/many/%d-%d", round, i)}}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if now, err := os.Readlink("/proc/self/ns/mnt"); err != nil || now != ours {
			t.Fatalf("in round %d this process is in %s, %v; it was in %s", round, now, err, ours)
		}
	}
}

func TestAttachFails(t *testing.T) {
	o := start(t)
	pid := o.cmd.Process.Pid
	for _, m := range []Mount{
		{Source: "/no/such/directory", Target: "/x"}, {Source: "relative", Target: "/x"}, {Source: "/tmp", Target: "relative"},
		{Source: "/tmp", Target: "/proc/version"},
	} {
		if err := Attach(pid, []Mount{m}); err == nil {
			t.Errorf("%+v is attached", m)
		}
	}
	if got := o.run("ls /"); strings.Contains(got, "x\n") {
		t.Errorf("a target is left in the root of the process: %s", got)
	}
	var before, after unix.Stat_t
	if err := unix.Stat("/", &before); err != nil {
		t.Fatal(err)
	}
	if err := Attach(pid, nil); err != nil {
		t.Error(err)
	}
	if err := unix.Stat("/", &after); err != nil || before.Dev != after.Dev || before.Ino != after.Ino {
		t.Errorf("this process has another root: %v", err)
	}
}
