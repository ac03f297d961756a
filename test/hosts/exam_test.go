package hosts

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"holdfast/test/vm"
)

var examOptions = flag.String("exam", "", "options of the examination, for example --held-out")

// examined is the machine of an examination. Its clock counts instructions, 1 ns each, and stands
// still while other work has this host's CPUs. Deadlines and loads in the machine are then those of
// a slow machine with one CPU, whatever the load of this host. With 4 ns, the machine itself takes most
// of its CPU. qemu 7.2 does not start a second CPU with such a clock.
func examined() []string { return []string{"-icount", "shift=0", "-smp", "1", "-m", "6144"} }

// The blind examination of the doctor runs on a host that has only cgroup v2. Its table is in the
// test's output. Like the bench, the test fails if the doctor misses a fault.
func TestExam(t *testing.T) {
	if !*machines {
		t.Skip("boots a virtual machine for hours: docs/doctor-exam.md")
	}
	h := &host{T: t, Machine: New(t, "bookworm")}
	h.size = examined()
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
