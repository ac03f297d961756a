package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/filetree"
	"holdfast/internal/platform/metric"
)

// base is the host's id of user 0 in the containers of this test.
const base = 100_000

// container runs a program with a root directory, a mount namespace and, with ids, a user
// namespace of its own. It has a tmpfs at /mem.
func container(t *testing.T, ids bool) (*Files, string) {
	t.Helper()
	if os.Getuid() != 0 && testing.Short() {
		t.Skip("-short without root: it needs mount namespaces")
	}
	root := t.TempDir()
	if err := os.Chmod(filepath.Dir(root), 0o755); err != nil { // the mapped user has to get there
		t.Fatal(err)
	}
	for _, dir := range []string{"", "bin", "mem", "tmp"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, dir), 0o755), own(filepath.Join(root, dir), ids)); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile("/bin/busybox")
	if os.IsNotExist(err) && testing.Short() {
		t.Skip("-short: it needs busybox")
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh", "mount"} {
		if err := os.WriteFile(filepath.Join(root, "bin", name), program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/bin/sh", "-c", "/bin/mount -t tmpfs none /mem && echo ready && read x")
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Cloneflags: unix.CLONE_NEWNS}
	if ids {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: base, Size: 65536}}
		cmd.SysProcAttr.GidMappings = cmd.SysProcAttr.UidMappings
		cmd.SysProcAttr.Credential = &syscall.Credential{}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // killed, or ended by its input
	})
	if _, err := io.ReadFull(out, make([]byte, len("ready"))); err != nil {
		t.Fatal(err)
	}
	place := Place{PID: cmd.Process.Pid, Left: make(chan struct{}), Same: func() bool { return cmd.ProcessState == nil }}
	return New(func(holdfast.SessionKey) (Place, error) { return place, nil }, metric.Registry{Registerer: prometheus.NewRegistry()}), root
}

func own(path string, ids bool) error {
	if !ids {
		return nil
	}
	return os.Chown(path, base, base)
}

// Files of a container with a user namespace have its ids, also in an archive.
func TestMappedIDs(t *testing.T) {
	f, root := container(t, true)
	ctx := t.Context()
	uid, gid := 5, 7
	got, err := f.Write(ctx, "alice", "/tmp/a", holdfast.WriteFile{UID: &uid, GID: &gid}, strings.NewReader("text"))
	if err != nil || got.UID != 5 || got.GID != 7 {
		t.Fatalf("%+v, %v", got, err)
	}
	fi, err := os.Stat(filepath.Join(root, "tmp", "a"))
	if err != nil {
		t.Fatal(err)
	}
	if st := fi.Sys().(*syscall.Stat_t); st.Uid != base+5 || st.Gid != base+7 {
		t.Errorf("the host sees %d and %d", st.Uid, st.Gid)
	}
	dir, err := f.MakeDir(ctx, "alice", "/tmp/d/e", true, holdfast.WriteFile{})
	if err != nil || dir.UID != 0 {
		t.Errorf("%+v, %v", dir, err)
	}
	if err := os.WriteFile(filepath.Join(root, "tmp", "host"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Stat(ctx, "alice", "/tmp/host", false); err != nil || got.UID != 65534 {
		t.Errorf("a file of the host's root user: %+v, %v", got, err)
	}
	// The file system belongs to the namespace, and knows no other users.
	if got, err := f.Write(ctx, "alice", "/mem/a", holdfast.WriteFile{}, strings.NewReader("text")); err != nil || got.UID != 0 || got.Size != 4 {
		t.Errorf("a file in memory: %+v, %v", got, err)
	}
	wrong := 70_000
	if _, err := f.Write(ctx, "alice", "/tmp/b", holdfast.WriteFile{UID: &wrong}, strings.NewReader("")); !errors.Is(err, holdfast.ErrBadFile) {
		t.Errorf("a user without a mapping: %v", err)
	}
	var b bytes.Buffer
	if err := f.Pack(ctx, "alice", "/tmp/a", &b); err != nil {
		t.Fatal(err)
	}
	if h, err := tar.NewReader(bytes.NewReader(b.Bytes())).Next(); err != nil || h.Uid != 5 || h.Gid != 7 || h.Name != "a" {
		t.Errorf("%+v, %v", h, err)
	}
	for owners, want := range map[bool]int{true: 5, false: 0} {
		if n, err := f.Unpack(ctx, "alice", "/tmp/d", holdfast.UnpackFiles{Owners: owners}, bytes.NewReader(b.Bytes())); err != nil || n.Entries != 1 {
			t.Errorf("%+v, %v", n, err)
		}
		if got, err := f.Stat(ctx, "alice", "/tmp/d/a", false); err != nil || got.UID != want {
			t.Errorf("with owners %v: %+v, %v", owners, got, err)
		}
	}
}

// A process with the host's mounts, such as that of a virtual machine, has no files here.
func TestHostRootIsRefused(t *testing.T) {
	f := New(func(holdfast.SessionKey) (Place, error) {
		return Place{PID: os.Getppid(), Same: func() bool { return true }}, nil
	}, metric.Registry{Registerer: prometheus.NewRegistry()})
	_, err := f.Stat(t.Context(), "alice", "/etc", false)
	if !errors.Is(err, holdfast.ErrBadFile) || holdfast.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
}

// A tree may be deeper than paths, and than the descriptors of a call, reach.
func TestDeepTreeIsRemoved(t *testing.T) {
	f, root := container(t, false)
	const depth = 3000
	at, err := unix.Open(filepath.Join(root, "tmp"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		if err := unix.Mkdirat(at, "d", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	if err := f.Pack(t.Context(), "alice", "/tmp/d", io.Discard); !errors.Is(err, holdfast.ErrBadFile) {
		t.Errorf("an archive of %d directories: %v", depth, err)
	}
	if err := f.Remove(t.Context(), "alice", "/tmp/d", false); !errors.Is(err, holdfast.ErrExists) {
		t.Errorf("a directory that is not empty: %v", err)
	}
	if err := f.Remove(t.Context(), "alice", "/tmp/d", true); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(root, "tmp")); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// The kernel charges the agent for a file in memory, so it is bounded.
func TestFilesInMemoryAreBounded(t *testing.T) {
	f, _ := container(t, false)
	if _, err := f.Write(t.Context(), "alice", "/mem/big", holdfast.WriteFile{}, io.LimitReader(zeros{}, maxMemoryFile+1)); !errors.Is(err, holdfast.ErrNoSpace) {
		t.Errorf("%v", err)
	}
	if list, more, err := f.List(t.Context(), "alice", "/mem", 0); err != nil || more || len(list) != 0 {
		t.Errorf("an incomplete file stays: %v, %v, %v", list, more, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A transfer ends with its session, and calls and watches are bounded.
func TestCallsAreBounded(t *testing.T) {
	f, root := container(t, false)
	left := make(chan struct{})
	locate := f.locate
	f.locate = func(k holdfast.SessionKey) (Place, error) {
		p, err := locate(k)
		p.Left = left
		return p, err
	}
	ended := make(chan error, maxOfSession)
	var ends []*io.PipeWriter
	for i := range maxOfSession {
		r, w := io.Pipe()
		ends = append(ends, w)
		go func() {
			_, err := f.Write(t.Context(), "alice", fmt.Sprintf("/tmp/%d", i), holdfast.WriteFile{}, r)
			ended <- err
		}()
		if _, err := w.Write([]byte("part")); err != nil { // it is in progress
			t.Fatal(err)
		}
	}
	if _, err := f.Stat(t.Context(), "alice", "/", false); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("one call more: %v", err)
	}
	if _, err := f.Stat(t.Context(), "bob", "/", false); err != nil {
		t.Errorf("another session: %v", err)
	}
	close(left)
	for range maxOfSession {
		if err := <-ended; !errors.Is(err, errLeft) || !errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("a write of a session that ends: %v", err)
		}
	}
	for _, w := range ends {
		w.Close()
	}
	if files, err := os.ReadDir(filepath.Join(root, "tmp")); err != nil || len(files) != 0 {
		t.Errorf("incomplete files stay: %v, %v", files, err)
	}
	if f.count(&f.calls) != 0 {
		t.Errorf("%d calls are in progress", f.count(&f.calls))
	}
}

// A file has the extended attributes of its last write, and those that the container sets.
func TestExtendedAttributes(t *testing.T) {
	f, root := container(t, true)
	if err := os.Symlink("b", filepath.Join(root, "tmp", "link")); err != nil {
		t.Fatal(err)
	}
	write := func(p string, all map[string]string) {
		t.Helper()
		if got, err := f.Write(t.Context(), "alice", p, holdfast.WriteFile{Attributes: all}, strings.NewReader("x")); err != nil || !maps.Equal(got.Attributes, all) {
			t.Errorf("%s: %v, %v", p, got.Attributes, err)
		}
	}
	one, two := map[string]string{"e2b.a": "1", "b": ""}, map[string]string{"c": "\x01"}
	for _, p := range []string{"/tmp/a", "/mem/a", "/tmp/b", "/tmp/link"} {
		write(p, one)
		write(p, two)
	}
	if got, err := f.Stat(t.Context(), "alice", "/tmp/link", false); err != nil || got.Attributes != nil {
		t.Errorf("the link: %v, %v", got.Attributes, err)
	}
	if list, _, err := f.List(t.Context(), "alice", "/tmp", 0); err != nil || len(list) != 3 || !maps.Equal(list[1].Attributes, two) {
		t.Errorf("%+v, %v", list, err)
	}
	write("/tmp/link", nil) // overwritten in place
	if got, err := f.Stat(t.Context(), "alice", "/tmp/b", false); err != nil || got.Attributes != nil {
		t.Errorf("after a write without attributes: %v, %v", got.Attributes, err)
	}
	// Too many are not read.
	for _, name := range []string{"user.one", "user.two"} {
		if err := unix.Setxattr(filepath.Join(root, "tmp", "a"), name, make([]byte, 1900), 0); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := f.Stat(t.Context(), "alice", "/tmp/a", false); err != nil || len(got.Attributes) != 3 {
		t.Errorf("3.8 kB: %d attributes, %v", len(got.Attributes), err)
	}
	if got := filetree.Extended(openFile(t, filepath.Join(root, "tmp", "a")), 3000); got != nil {
		t.Errorf("over 3 kB: %d attributes", len(got))
	}
}

func openFile(t *testing.T, p string) *os.File {
	t.Helper()
	f, err := os.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
