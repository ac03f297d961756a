package holder

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/netns"
)

func TestProgramIsForEachArchitecture(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		program, err := Program(arch)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(program))
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		if f.Machine != machine || len(program) > 512 || !bytes.HasSuffix(program, []byte("\x01\x00"+Socket+"\x00")) {
			t.Errorf("%s: %+v in %d bytes", arch, f.FileHeader, len(program))
		}
	}
	if _, err := Program("vax"); err == nil {
		t.Error("a VAX is supported")
	}
}

// start runs the program with a directory of this host as Dir, and returns the listener.
func start(t *testing.T) (*exec.Cmd, *Listener) {
	t.Helper()
	if os.Getuid() != 0 && testing.Short() {
		t.Skip("-short without root: a holder needs root")
	}
	program, err := Program(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	file, dir := filepath.Join(root, "holder"), filepath.Join(root, Dir)
	if err := errors.Join(os.WriteFile(file, program, 0o700), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	cmd := exec.Command("/holder")
	cmd.SysProcAttr = &unix.SysProcAttr{Chroot: root, Cloneflags: unix.CLONE_NEWNET}
	cmd.Dir = "/"
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, l
}

// A holder is in the namespace that it was sent last, refuses what is no namespace, and
// exits at the end of its connection.
func TestHolderChangesItsNamespace(t *testing.T) {
	cmd, l := start(t)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	c, err := l.Accept(cmd.Process.Pid, time.Now().Add(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	its := netns.OfProcess(cmd.Process.Pid)
	home, err := os.Open(its)
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	first, err := netns.ID(its)
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Open(netns.OfProcess(0))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	want, err := netns.ID(netns.OfProcess(0))
	if err != nil || want == first {
		t.Fatalf("%s is both, %v", want, err)
	}
	for range 100 {
		for ns, id := range map[*os.File]string{own: want, home: first} {
			if err := c.Enter(ns); err != nil {
				t.Fatal(err)
			}
			if got, err := netns.ID(its); got != id || err != nil {
				t.Fatalf("it is in %s, %v, not in %s", got, err, id)
			}
		}
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := c.Enter(null); !errors.Is(err, unix.EINVAL) {
		t.Errorf("/dev/null as a namespace: %v", err)
	}
	open, err := filepath.Glob("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/fd/*")
	if err != nil || len(open) == 0 {
		t.Fatalf("its descriptors: %v, %v", open, err)
	}
	for _, file := range open {
		if to, _ := os.Readlink(file); strings.HasPrefix(to, "net:") || to == os.DevNull && filepath.Base(file) > "2" {
			t.Errorf("it keeps %s, which is %s", file, to)
		}
	}
	c.Close()
	select {
	case err := <-ended:
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("it has ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		_ = cmd.Process.Kill()
		t.Error("it does not end with its connection")
	}
}

// A holder ends if it gets something other than one descriptor.
func TestHolderEndsOnWhatItDoesNotExpect(t *testing.T) {
	for name, message := range map[string]func(c *Conn) error{
		"no descriptor":   func(c *Conn) error { _, err := c.c.Write([]byte{0}); return err },
		"two descriptors": func(c *Conn) error { _, _, err := c.c.WriteMsgUnix([]byte{0}, unix.UnixRights(0, 1), nil); return err },
		"two bytes": func(c *Conn) error {
			_, _, err := c.c.WriteMsgUnix([]byte{0, 0}, nil, nil)
			return err
		},
	} {
		cmd, l := start(t)
		c, err := l.Accept(cmd.Process.Pid, time.Now().Add(10*time.Second))
		if err == nil {
			err = message(c)
		}
		if err != nil {
			_ = cmd.Process.Kill()
			t.Fatalf("%s: %v", name, err)
		}
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("%s: it has ended with %v", name, err)
		}
		kill.Stop()
		c.Close()
	}
}

// Only the holder itself is taken for it.
func TestStrangersAreRefused(t *testing.T) {
	cmd, l := start(t)
	_, err := l.Accept(os.Getpid(), time.Now().Add(10*time.Second))
	if !errors.Is(err, ErrStranger) {
		t.Errorf("another process: %v", err)
	}
	_ = cmd.Wait() // it ends with its connection
	if _, err := l.Accept(1, time.Now().Add(time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no process: %v", err)
	}
}

// A holder does not take descriptors from a process that is not root.
func TestHolderTakesNothingFromOthers(t *testing.T) {
	cmd, l := start(t)
	defer l.Close()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	// SO_PEERCRED has the credentials of the listener at its listen(2).
	root, err := os.MkdirTemp("", "holder")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	dir := filepath.Join(root, Dir)
	program, err := Program(runtime.GOARCH)
	if err = errors.Join(err, os.Chmod(root, 0o711), os.WriteFile(filepath.Join(root, "holder"), program, 0o755), os.Mkdir(dir, 0o777), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0)); e != 0 {
			ended <- e
			return
		}
		other, err := Listen(dir)
		if err != nil {
			ended <- err
			return
		}
		defer other.Close()
		unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 0, ^uintptr(0))
		cmd := exec.Command("/holder")
		cmd.SysProcAttr, cmd.Dir = &unix.SysProcAttr{Chroot: root, Cloneflags: unix.CLONE_NEWNET}, "/"
		ended <- cmd.Run()
	}()
	var exit *exec.ExitError
	if err := <-ended; !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("the socket of another user: %v", err)
	}
}
