package rig

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/proc"
)

// Clock changes CLOCK_REALTIME of one process, and no other process's. It replaces the
// process's clock_gettime in the vDSO (vdso(7)), by which Go's runtime reads all clocks.
// The kernel gives the process its own copy of the page. Times that the kernel itself
// takes, of files for example, stay right, and so do those of programs that the process
// executes later.
type Clock struct {
	pid   int
	at    int64  // address of clock_gettime
	other int64  // address of gettimeofday, which Go's runtime does not call: gettime is written there
	saved []byte // the first bytes of clock_gettime, which a jump replaces
}

// jump is the length of a jump with 32 bits. clock_gettime gets only that: a signal's
// handler may return into the function, into the end of a system call above all. gettime
// therefore stays in memory, too.
const jump = 5

// gettime is the function that is written. It calls clock_gettime(2) and adds shiftAt to
// the seconds of CLOCK_REALTIME, which is clock 0.
//
//	mov eax, 228; syscall; test edi, edi; jne end; add qword [rsi], 0; end: ret
var gettime = []byte{0xb8, 228, 0, 0, 0, 0x0f, 0x05, 0x85, 0xff, 0x75, 0x07, 0x48, 0x81, 0x06, 0, 0, 0, 0, 0xc3}

// shiftAt is the place of the seconds in gettime, a signed number of 32 bits.
const shiftAt = 14

// OpenClock finds the clock of a process, and changes nothing.
func OpenClock(pid int) (*Clock, error) {
	c, err := openClock(pid)
	if err != nil {
		return nil, fmt.Errorf("the clock of process %d: %w", pid, err)
	}
	return c, nil
}

func openClock(pid int) (*Clock, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	var from, to int64
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				return nil, err
			}
		}
	}
	if from == 0 {
		return nil, errors.New("it has no vDSO")
	}
	c := &Clock{pid: pid, saved: make([]byte, jump)}
	image := make([]byte, to-from)
	if err := c.memory(os.O_RDONLY, func(mem *os.File) error { _, err := mem.ReadAt(image, from); return err }); err != nil {
		return nil, err
	}
	offset, err := symbolOf(image, "__vdso_clock_gettime", jump)
	if err != nil {
		return nil, err
	}
	other, err := symbolOf(image, "__vdso_gettimeofday", len(gettime))
	if err != nil {
		return nil, err
	}
	c.at, c.other = from+int64(offset), from+int64(other)
	copy(c.saved, image[offset:])
	return c, nil
}

// symbolOf returns the offset of a function in an image of the vDSO, with size bytes at
// least.
func symbolOf(image []byte, name string, size int) (uint64, error) {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, err
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return 0, err
	}
	for _, s := range symbols {
		if s.Name == name && s.Size >= uint64(size) && s.Value+s.Size <= uint64(len(image)) {
			return s.Value, nil
		}
	}
	return 0, fmt.Errorf("its vDSO has no %s, or one that is too short", name)
}

func (c *Clock) memory(flags int, f func(mem *os.File) error) error {
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", c.pid), flags, 0)
	if err != nil {
		return err
	}
	return errors.Join(f(mem), mem.Close())
}

// Shift sets the process's clock so far ahead of the machine's, in whole seconds; a
// negative time sets it behind.
func (c *Clock) Shift(by time.Duration) error {
	seconds := int64(by / time.Second)
	if seconds < math.MinInt32 || seconds > math.MaxInt32 {
		return fmt.Errorf("a clock cannot be shifted by %v", by)
	}
	code := bytes.Clone(gettime)
	binary.LittleEndian.PutUint32(code[shiftAt:], uint32(int32(seconds)))
	way := binary.LittleEndian.AppendUint32([]byte{0xe9}, uint32(int32(c.other-c.at-jump)))
	return c.write(func(mem *os.File) error {
		if _, err := mem.WriteAt(code, c.other); err != nil {
			return err
		}
		_, err := mem.WriteAt(way, c.at)
		return err
	})
}

// Restore gives the process the machine's clock again.
func (c *Clock) Restore() error {
	return c.write(func(mem *os.File) error { _, err := mem.WriteAt(c.saved, c.at); return err })
}

// write changes the functions while the process is stopped and no thread is within the
// bytes of the jump.
func (c *Clock) write(change func(mem *os.File) error) error {
	for end := time.Now().Add(Patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		done, err := c.tryWrite(change)
		if err != nil {
			return fmt.Errorf("the clock of process %d: %w", c.pid, err)
		}
		if done {
			return nil
		}
	}
	return fmt.Errorf("the clock of process %d: its threads did not stop, or always within the clock", c.pid)
}

func (c *Clock) tryWrite(change func(mem *os.File) error) (done bool, err error) {
	if err := unix.Kill(c.pid, unix.SIGSTOP); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, unix.Kill(c.pid, unix.SIGCONT)) }()
	for end := time.Now().Add(Patience); ; time.Sleep(time.Millisecond) {
		stopped, outside, err := c.threads()
		switch {
		case err != nil:
			return false, err
		case stopped && outside:
			return true, c.memory(os.O_RDWR, change)
		case stopped || time.Now().After(end):
			return false, nil
		}
	}
}

// threads reports whether all threads have stopped, and whether none is within the
// bytes of the jump.
func (c *Clock) threads() (stopped, outside bool, err error) {
	dir := fmt.Sprintf("/proc/%d/task/", c.pid)
	threads, err := os.ReadDir(dir)
	if err != nil {
		return false, false, err
	}
	stopped, outside = true, true
	for _, t := range threads {
		stat, err := os.ReadFile(dir + t.Name() + "/stat")
		if err != nil {
			return false, false, err
		}
		s, err := proc.ParseStat(stat)
		if err != nil {
			return false, false, err
		}
		stopped = stopped && s.State == 'T'
		text, err := os.ReadFile(dir + t.Name() + "/syscall")
		if err != nil {
			return false, false, err
		}
		// The last field is the program counter, or "running" (proc_pid_syscall(5)).
		fields := strings.Fields(string(text))
		at, err := strconv.ParseInt(strings.TrimPrefix(fields[len(fields)-1], "0x"), 16, 64)
		outside = outside && err == nil && (at <= c.at || at >= c.at+jump)
	}
	return stopped, outside, nil
}
