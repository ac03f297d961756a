package probe

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// inside starts a process in namespaces of its own and returns its id when the shell script that
// prepares them has ended.
func inside(t *testing.T, script string) int {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("run the test as root: it makes namespaces")
	}
	cmd := exec.Command("sh", "-ec", script+"; echo ready; exec sleep 300")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Unshareflags: unix.CLONE_NEWNS | unix.CLONE_NEWIPC}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended already if the test has failed
		_ = cmd.Wait()         // killed
	})
	if _, err := fmt.Fscanln(out, new(string)); err != nil {
		t.Fatalf("the process did not become ready: %v", err)
	}
	return cmd.Process.Pid
}

// The share in use of a tmpfs with a size is read; one that is read-only, that another mount hides, or
// that a symbolic link replaces is not.
func TestMemoryDisks(t *testing.T) {
	runtime.LockOSThread() // a child ends with the thread that started it
	defer runtime.UnlockOSThread()
	base := t.TempDir()
	pid := inside(t, fmt.Sprintf(`mount --make-rprivate /; cd %s; mkdir shm ro hidden
mount -t tmpfs -o size=1m tmpfs shm; head -c 524288 /dev/zero >shm/file
mount -t tmpfs -o size=1m tmpfs ro; head -c 786432 /dev/zero >ro/file; mount -o remount,bind,ro ro
mount -t tmpfs -o size=1m tmpfs hidden; head -c 786432 /dev/zero >hidden/file; mount -t tmpfs -o size=2m tmpfs hidden`, base))
	s := mountsOf(Host{Proc: proc.Host}, fmt.Sprintf("/proc/%d", pid))
	if used := s[memoryDisk+base+"/shm"]; used < 0.45 || used > 0.6 {
		t.Errorf("half of it is used, and %v is read: %v", used, s)
	}
	if _, ok := s[memoryDisk+base+"/ro"]; ok {
		t.Error("a read-only file system is read")
	}
	if used, ok := s[memoryDisk+base+"/hidden"]; !ok || used > 0.1 {
		t.Errorf("the upper of two mounts at one place is empty: %v", used)
	}
	after := space{subject: fact.Subject{Pid: pid}, values: sample{memoryDisk + "/dev/shm": 0.5, memoryDisk + "/run": 0.1, "mounts": 9}}
	fs := memoryDiskFacts(sample{memoryDisk + "/dev/shm": 0.4}, after, 10*time.Second)
	if len(fs) != 2 || fs[0].Value != 0.5 || fs[0].Subject.Device != "/dev/shm" || fs[1].Value < 0.0099 || fs[1].Value > 0.0101 {
		t.Errorf("%+v", fs)
	}
}

// Objects of System V of an IPC namespace are counted, of each kind.
func TestSegments(t *testing.T) {
	runtime.LockOSThread() // a child ends with the thread that started it
	defer runtime.UnlockOSThread()
	pid := inside(t, "ipcmk -S 1 >/dev/null; ipcmk -Q >/dev/null; ipcmk -Q >/dev/null; ipcmk -M 4096 >/dev/null; echo 32000 1024000000 500 4 >/proc/sys/kernel/sem; echo 4 >/proc/sys/kernel/msgmni; echo 2 >/proc/sys/kernel/shmmni")
	s := segmentsOf(Host{Proc: proc.Host}, fmt.Sprintf("/proc/%d", pid))
	if s["semaphores"] != 0.25 || s["messages"] != 0.5 || s["segments"] != 0.5 || s["queues"] != 0 {
		t.Errorf("%v", s)
	}
}
