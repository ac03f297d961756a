package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// busyboxImage is the image that lab.Busybox makes.
const busyboxImage = "busybox:latest"

// exitFindings is the doctor's exit code when it has findings (docs/cli.md).
const exitFindings = 9

// look is one run of the doctor with its measurements.
type look struct {
	report doctor.Report
	took   time.Duration // duration of the whole command
	cpu    time.Duration // CPU time of the command and its child
	peak   int64         // peak memory of the command in bytes
	steal  float64       // share of CPU time that the hypervisor stole meanwhile
}

// dead is the number of dying memory cgroups that the doctor counted.
func (l look) dead() float64 {
	for _, f := range l.report.Facts {
		if f.Name == fact.MemcgDying {
			return f.Value
		}
	}
	return 0
}

// look runs the doctor's command as an operator does.
func (x *accuracyBench) look(ctx context.Context) (look, error) {
	return runDoctor(ctx, x.o.Doctor, x.o.For, x.config)
}

func runDoctor(ctx context.Context, argv []string, d time.Duration, config string) (look, error) {
	ctx, cancel := context.WithTimeout(ctx, d+2*time.Minute)
	defer cancel()
	argv = append(append([]string{}, argv...), "--for", d.String(), "--json")
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "HOLDFAST_CONFIG="+config)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	before, err := cpuTimes()
	if err != nil {
		return look{}, err
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return look{}, err
	}
	ended := make(chan struct{})
	peak := make(chan int64, 1)
	go func() { peak <- watchPeak(cmd.Process.Pid, ended) }()
	err = cmd.Wait()
	close(ended)
	l := look{took: time.Since(begun), peak: <-peak, cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	if ctx.Err() != nil {
		return l, ctx.Err()
	}
	if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != exitFindings) {
		// Not wrapped: the doctor's exit code must not become this program's.
		return l, fmt.Errorf("the doctor: %v: %s", err, strings.TrimSpace(errs.String()))
	}
	if err := json.Unmarshal(out.Bytes(), &l.report); err != nil {
		return l, fmt.Errorf("the doctor's report: %w", err)
	}
	after, err := cpuTimes()
	if all := after.all - before.all; err == nil && all > 0 {
		l.steal = (after.steal - before.steal) / all
	}
	return l, err
}

// watchPeak reads the peak memory of a process (VmHWM of proc_pid_status(5)) until it
// ends. wait4(2) would be wrong: there a child's peak includes the parent's memory at
// the fork.
func watchPeak(pid int, ended <-chan struct{}) int64 {
	var peak int64
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if _, rest, ok := strings.Cut(string(b), "VmHWM:"); err == nil && ok {
			if kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64); err == nil {
				peak = max(peak, kib<<10)
			}
		}
		select {
		case <-ended:
			return peak
		case <-tick.C:
		}
	}
}

// times is the CPU time of all CPUs together, in ticks.
type times struct{ all, steal float64 }

// cpuTimes reads the first line of /proc/stat, proc_stat(5): user, nice, system,
// idle, iowait, irq, softirq, steal.
func cpuTimes() (times, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return times{}, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return times{}, fmt.Errorf("/proc/stat: %q", line)
	}
	var t times
	for i, f := range fields[1:9] {
		v, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return times{}, fmt.Errorf("/proc/stat: %w", err)
		}
		t.all += v
		if i == 7 {
			t.steal = v
		}
	}
	return t, nil
}

// loadAverage returns the machine's 1-minute load average, 0 if it is unknown.
func loadAverage() float64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	const scale = 1 << 16 // SI_LOAD_SHIFT, include/uapi/linux/sysinfo.h
	return float64(info.Loads[0]) / scale
}

// writeEngineConfig writes a configuration that names only the engine.
func writeEngineConfig(dir, host string) (string, error) {
	path := filepath.Join(dir, "doctor.yaml")
	return path, os.WriteFile(path, fmt.Appendf(nil, "engine: {host: %q}\n", host), 0o600)
}

// benchGroup is a control group, in every hierarchy, for the bench's processes outside
// of containers. A finding about any other group outside of the engine's groups is
// then about another workload on this machine.
type benchGroup struct {
	dirs []string // the group's directory in each hierarchy
	back []string // the groups that this process was in before
}

// counting lists the cgroup v1 controllers that attribute usage to groups.
var counting = []string{"cpu", "cpuacct", "memory", "blkio", "pids"}

// enterGroup makes the group below the engine's group and moves this process and its
// children there. The group is removed together with the engine's.
func enterGroup(ms cgroup.Mounts, parent string) (*benchGroup, error) {
	g := &benchGroup{}
	was, err := ms.Of(proc.Host, os.Getpid())
	if err != nil {
		return g, err
	}
	for _, w := range was {
		if !w.V2 && !slices.ContainsFunc(counting, w.Has) { // a cpuset, for example, must be configured before it takes processes
			continue
		}
		g.back = append(g.back, w.Dir())
		dir := filepath.Join(w.Point, parent, "bench")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return g, fmt.Errorf("make a control group for this bench: %w", err)
		}
		g.dirs = append(g.dirs, dir)
	}
	pids, err := proc.Host.Pids()
	if err != nil {
		return g, err
	}
	for _, pid := range pids {
		above, err := proc.Host.Ancestors(pid)
		if pid != os.Getpid() && (err != nil || !slices.Contains(above, os.Getpid())) {
			continue // of another program, or gone
		}
		for _, dir := range g.dirs {
			// ESRCH: the process has just ended.
			if err := move(dir, pid); err != nil && !errors.Is(err, unix.ESRCH) {
				return g, err
			}
		}
	}
	return g, nil
}

// leave moves only this process back to its previous groups.
func (g *benchGroup) leave() error {
	var err error
	for _, dir := range g.back {
		err = errors.Join(err, move(dir, os.Getpid()))
	}
	return err
}

func move(dir string, pid int) error {
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		return fmt.Errorf("move process %d to another control group: %w", pid, err)
	}
	return nil
}
