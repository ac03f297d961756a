package probe

import (
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kernelLog is the kernel's log from a moment on, /dev/kmsg (Documentation/ABI/testing/dev-kmsg). It
// is empty if it may not be read. It is for one goroutine.
type kernelLog struct{ fd int }

// openKernelLog opens the log at its end. The path "" is none.
func openKernelLog(path string) *kernelLog {
	l := wholeKernelLog(path)
	l.skip()
	return l
}

// wholeKernelLog opens the log at the oldest record that the kernel still has.
func wholeKernelLog(path string) *kernelLog {
	l := &kernelLog{fd: -1}
	if path == "" {
		return l
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil { // a container has none, and it may need CAP_SYSLOG
		return l
	}
	l.fd = fd
	return l
}

// kernelRecord reads a record such as "6,1234,16201748602,-;sh (32256): drop_caches: 3": the time since
// the machine booted, and the text (Documentation/ABI/testing/dev-kmsg). It reports false for other
// texts, and for records that a program wrote: their facility is not 0.
func kernelRecord(record string) (at time.Duration, text string, ok bool) {
	head, text, _ := strings.Cut(record, ";")
	f := strings.Split(head, ",")
	if len(f) < 3 {
		return 0, "", false
	}
	level, err := strconv.Atoi(f[0])
	micros, err2 := strconv.ParseInt(f[2], 10, 64)
	return time.Duration(micros) * time.Microsecond, text, err == nil && err2 == nil && level >= 0 && level <= 7
}

// skip leaves out the records until now.
func (l *kernelLog) skip() {
	if l.fd < 0 {
		return
	}
	if _, err := unix.Seek(l.fd, 0, unix.SEEK_END); err != nil { // not a log
		_ = l.Close()
		l.fd = -1
	}
}

// Bounds of one reading. The kernel refuses to read a record into a buffer that is too short; the
// longest has 8 KiB with its attributes (kernel/printk/printk.c).
const (
	maxRecord  = 16 << 10
	maxRecords = 20_000
)

// records returns those records since the last reading that have a text, of at most the maxRecords
// oldest. The kernel overwrites records that are not read in time.
func (l *kernelLog) records(with string) (all []string) {
	buf := make([]byte, maxRecord)
	for reads := 0; l.fd >= 0 && reads < maxRecords; reads++ {
		n, err := unix.Read(l.fd, buf) // one record
		switch {
		case err == unix.EPIPE || err == unix.EINTR: // EPIPE: the next record was overwritten
			continue
		case err != nil || n == 0: // EAGAIN: there are no more
			return all
		}
		for line := range strings.Lines(string(buf[:n])) {
			if !strings.HasPrefix(line, " ") && strings.Contains(line, with) { // lines of attributes begin with a space
				all = append(all, strings.TrimSuffix(line, "\n"))
			}
		}
	}
	return all
}

func (l *kernelLog) Close() error {
	if l.fd < 0 {
		return nil
	}
	return unix.Close(l.fd)
}
