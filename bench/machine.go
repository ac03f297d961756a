package bench

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/engine"
)

// ThisMachine describes the host that the bench runs on. engine is the experiment's
// container engine, "" for none.
func ThisMachine(engine string) Machine {
	m := Machine{CPUs: runtime.NumCPU(), Model: cpuModel(), Engine: engine}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.Memory = int64(info.Totalram) * int64(info.Unit)
	}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		m.Kernel = fmt.Sprintf("%s %s", unix.ByteSliceToString(uts.Release[:]), unix.ByteSliceToString(uts.Machine[:]))
	}
	return m
}

// EngineMachine describes the host of an experiment on a container engine.
func EngineMachine(info engine.Info) Machine {
	return ThisMachine(fmt.Sprintf("%s %s, %s, cgroup %s", info.Name, info.Version, info.StorageDriver, info.CgroupVersion))
}

// cpuModel is the first model name of /proc/cpuinfo, "unknown" where there is
// none (some architectures have no such line).
func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}
