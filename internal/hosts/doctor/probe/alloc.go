package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/deathsig"
	"holdfast/internal/platform/linux/threads"
)

// RoleAlloc is the role of a child process that allocates memory. It is a child because
// it joins a control group of its own. Its argument is that group's directory.
const RoleAlloc = "doctor-alloc"

// allocSize is the size of the mapping that is touched. It is the size that a database's
// allocator requested when each request took 100 ms (docs/doctor.md).
const allocSize = 128 << 20

// allocRounds is the number of rounds. The fastest counts, because the probe looks for
// causes that slow down every round.
const allocRounds = 3

// allocLimit bounds the wall time of all rounds together.
const allocLimit = 5 * time.Second

// allocGroup is the prefix of the groups' names.
const allocGroup = "holdfast-doctor-"

// allocProbe times the allocation of memory in a new control group.
func allocProbe() Probe {
	return Probe{
		Name: "alloc", Sees: "how long it takes to allocate memory in a control group", Busy: true,
		Gives: []string{fact.AllocMs, fact.AllocWall},
		Open:  moment(testAlloc),
	}
}

func testAlloc(ctx context.Context, h Host) ([]fact.Fact, error) {
	took, err := tryAlloc(ctx, h)
	if err != nil {
		return nil, err
	}
	return []fact.Fact{host(fact.AllocMs, ms(took.CPU), fact.Millis), host(fact.AllocWall, ms(took.Wall), fact.Millis)}, nil
}

// allocTook is the child's result.
type allocTook struct {
	CPU  time.Duration `json:"cpu_ns"`
	Wall time.Duration `json:"wall_ns"`
}

func tryAlloc(ctx context.Context, h Host) (allocTook, error) {
	var took allocTook
	m, ok := h.Groups.Memory()
	if !ok {
		return took, errors.New("no hierarchy with the memory controller is mounted")
	}
	if len(h.Child) == 0 {
		return took, errors.New("this program cannot run itself as a child")
	}
	if free, err := freeMemory(h); err != nil {
		return took, err
	} else if free < 4*allocSize { // the probe must not use up the host's memory
		return took, fmt.Errorf("only %.0f MiB of memory are free", free/(1<<20))
	}
	sweepGroups(m.Point)
	// The pid alone is not unique: a process in another pid namespace may have the same.
	dir, err := os.MkdirTemp(m.Point, allocGroup+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return took, fmt.Errorf("make a control group: %w", err)
	}
	defer removeGroup(dir)
	trying, cancel := context.WithTimeout(ctx, allocLimit)
	defer cancel()
	cmd := exec.CommandContext(trying, h.Child[0], append(append([]string{}, h.Child[1:]...), dir)...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err = deathsig.Run(cmd, unix.SIGKILL)
	took, ok = fastest(out.Bytes())
	switch {
	case ctx.Err() != nil:
		return took, ctx.Err()
	case ok: // on busy CPUs not every round ends in time
		return took, nil
	case trying.Err() != nil:
		return took, fmt.Errorf("allocate memory in a child: no round ended within %v: the CPUs are busy", allocLimit)
	case err != nil:
		return took, fmt.Errorf("allocate memory in a child: %w: %s", err, strings.TrimSpace(complaint.String()))
	}
	return took, errors.New("allocate memory in a child: the child printed no result")
}

// fastest returns the fastest round of the child's output, which has a line per round.
func fastest(out []byte) (allocTook, bool) {
	best, ok := allocTook{}, false
	for line := range bytes.Lines(out) {
		var took allocTook
		if err := json.Unmarshal(line, &took); err != nil || took.CPU <= 0 {
			continue // the child was killed while it wrote this line
		}
		if !ok || took.CPU < best.CPU {
			best, ok = took, true
		}
	}
	return best, ok
}

func freeMemory(h Host) (float64, error) {
	text, err := read(string(h.Proc) + "/meminfo")
	if err != nil {
		return 0, err
	}
	return numbers(text)["MemAvailable"] * 1024, nil
}

// sweepGroups removes the groups of killed examinations. A group with a process cannot be
// removed. A group that was just created may get its process at any moment.
func sweepGroups(point string) {
	old, _ := filepath.Glob(point + "/" + allocGroup + "*") // the pattern is valid
	for _, dir := range old {
		if fi, err := os.Stat(dir); err == nil && time.Since(fi.ModTime()) > time.Minute {
			_ = unix.Rmdir(dir)
		}
	}
}

// removeGroup removes a group whose process is about to exit.
func removeGroup(dir string) {
	for range 100 {
		if err := unix.Rmdir(dir); err == nil || errors.Is(err, unix.ENOENT) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Alloc is the child: it joins the group and prints to out how long each round took.
func Alloc(args []string, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("%s: %d arguments, want a control group", RoleAlloc, len(args))
	}
	if err := os.WriteFile(filepath.Join(args[0], "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("join a control group: %w", err)
	}
	results := json.NewEncoder(out)
	for range allocRounds {
		took, err := touch(allocSize)
		if err != nil {
			return err
		}
		if err := results.Encode(took); err != nil {
			return err
		}
	}
	return nil
}

// touch maps memory, touches each of its pages and unmaps it.
func touch(size int) (allocTook, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin, cpu := time.Now(), threads.CPUTime()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return allocTook{}, fmt.Errorf("mmap: %w", err)
	}
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) // one charge per page, if the kernel supports it
	for i := 0; i < size; i += os.Getpagesize() {
		b[i] = 1
	}
	took := allocTook{CPU: threads.CPUTime() - cpu, Wall: time.Since(begin)}
	if err := unix.Munmap(b); err != nil {
		return allocTook{}, fmt.Errorf("munmap: %w", err)
	}
	return took, nil
}
