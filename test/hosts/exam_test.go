package hosts

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"holdfast/test/vm"
)

var examOptions = flag.String("exam", "", "options of the examination, for example --held-out")

// slow is how many seconds of this host are one second of the machine.
var slow = flag.Int("slow", 4, "how many times slower the clock of the examination's machine runs")

// volume is a disk with the rates of a common cloud volume (gp3 of AWS: 3,000 operations and 125 MiB a
// second), in the machine's time. Without them the file of the disk is in this host's memory, and each
// operation costs the machine more CPU time than disk time.
const volume = ",throttling.iops-total=3000,throttling.bps-total=131072000"

// slowed is a qemu with a thread for each CPU, whose clocks and timers run slower than this host's. An
// emulated CPU takes about 20 times as long as a real one; in the machine's own time it is a fifth as
// fast with a clock that is 4 times slower. The timestamp counter of its CPUs is this host's, and its kernel
// calibrates it by the slow timers.
func slowed(t *testing.T) emulator {
	t.Helper()
	if *slow < 1 {
		t.Fatalf("-slow %d: it must be 1 or more", *slow)
	}
	dir := made(t, "qemu.sh")
	const libraries = "/usr/lib/x86_64-linux-gnu"
	return emulator{
		program: filepath.Join(dir, "usr/bin/qemu-system-x86_64"),
		args:    []string{"-accel", "tcg,thread=multi", "-L", filepath.Join(dir, "usr/share/qemu"), "-L", "/usr/share/seabios", "-L", "/usr/lib/ipxe/qemu"},
		env: []string{
			"QEMU_MODULE_DIR=" + filepath.Join(dir, libraries, "qemu"),
			"LD_PRELOAD=" + filepath.Join(libraries, "faketime/libfaketimeMT.so.1"), // faketime(1)
			fmt.Sprintf("FAKETIME=+0 x%f", 1/float64(*slow)), "FAKETIME_DONT_RESET=1", "FAKETIME_DISABLE_SHM=1", "NO_FAKE_STAT=1",
		},
	}
}

// The blind examination of the doctor runs on a host that has only cgroup v2 and two CPUs. Its table is in the
// test's output. Like the bench, the test fails if the doctor misses a fault.
func TestExam(t *testing.T) {
	if !*machines {
		t.Skip("boots a virtual machine for hours: docs/doctor-exam.md")
	}
	h := &host{T: t, Machine: New(t, "bookworm")}
	h.qemu, h.size, h.disk = slowed(t), []string{"-smp", "2", "-m", "6144"}, volume
	if err := h.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The faults are compiled in the machine, and the distractor build compiles there, too.
	h.run("apt-get -q update; DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends gcc libc6-dev python3; systemctl stop docker.socket docker containerd")
	h.examination()
	t.Log("\n" + h.run("uname -r; stat -f -c 'cgroup: %T' /sys/fs/cgroup; dockerd --version; nproc"))
	// The machine is the lab. In a pid namespace of its own, the doctor would not see the machine's other
	// processes.
	const bench = "cd exam; HOLDFAST_LAB=$(readlink /proc/self/ns/pid) ./holdfast-bench accuracy --faults faults "
	if err := h.stream(t.Context(), bench+*examOptions, nil, os.Stdout); err != nil {
		t.Error(err)
	}
}

// examination brings the programs and the faults to the machine's directory exam.
func (h *host) examination() {
	h.Helper()
	for _, program := range []string{"holdfast", "holdfast-bench"} {
		file := filepath.Join(h.TempDir(), program)
		if err := vm.Build(h.Context(), file, "build", "holdfast/cmd/"+program); err != nil {
			h.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			h.Fatal(err)
		}
		h.write("exam/"+program, text)
	}
	packed, err := exec.CommandContext(h.Context(), "tar", "-C", "../../bench", "-c", "faults").Output()
	if err != nil {
		h.Fatalf("tar: %v", err)
	}
	h.write("exam/faults.tar", packed)
	h.run("chmod +x exam/holdfast*; tar -C exam -xf exam/faults.tar")
}
