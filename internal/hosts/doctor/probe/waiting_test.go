package probe

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/poll"
)

// Containers that wait for a lock of another control group are found, with the share of the time. The
// lines are those of proc_locks(5).
func TestLockWaits(t *testing.T) {
	root := t.TempDir()
	h := Host{Proc: proc.FS(root)}
	id := strings.Repeat("a", 64)
	other := strings.Repeat("b", 64)
	group := func(p string) string { return "0::" + p + "\n" }
	files(t, root, map[string]string{
		"locks": "1: FLOCK  ADVISORY  WRITE 5 fe:00:786 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 7 fe:00:786 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 5 fe:00:786 0 EOF\n" +
			"2: POSIX  ADVISORY  WRITE 8 fe:00:787 0 EOF\n2: -> POSIX  ADVISORY  WRITE 9 fe:00:787 0 EOF\n3: OFDLCK ADVISORY  WRITE -1 fe:00:788 0 EOF\n3: -> OFDLCK ADVISORY  WRITE -1 fe:00:788 0 EOF\n",
		"5/cgroup": group("/backup.service"), "5/comm": "backup\n", "5/stat": stat(5, "backup"),
		"7/cgroup": group("/docker/" + id), "8/cgroup": group("/docker/" + other), "9/cgroup": group("/docker/" + other),
	})
	waits := waitsForOthers(h)
	if len(waits) != 1 || waits["5 /docker/"+id] != 1 {
		t.Fatalf("%v", waits)
	}
	fs := lockWaitFacts(h, []levels{{time.Now(), waits}, {time.Now(), nil}, {time.Now(), waits}, {time.Now(), waits}})
	if len(fs) != 1 || fs[0].Name != fact.LockWaits || fs[0].Value != 0.75 || fs[0].Subject.Command != "backup" || fs[0].Subject.Device != "/docker/"+id {
		t.Errorf("%+v", fs)
	}
}

// Processes that wait for each other are a cycle, with those in between. Others that wait for one of them
// are none of it.
func TestLockCycles(t *testing.T) {
	locks := map[int][]int{1: {2, 9}, 2: {3}, 3: {1}, 4: {5, 6}, 7: {7}}
	locks[5], locks[-1] = []int{-1}, []int{5} // perhaps of two programs
	for pid, want := range map[int]float64{1: 3, 2: 3, 3: 3, 4: 0, 5: 0, 7: 0, 9: 0} {
		if got := cycle(locks, pid); got != want {
			t.Errorf("process %d is in a cycle of %v, want %v", pid, got, want)
		}
	}
	root := t.TempDir()
	h := Host{Proc: proc.FS(root)}
	line := func(of string, pid int) string {
		return "1: " + of + "FLOCK  ADVISORY  WRITE " + strconv.Itoa(pid) + " fe:00:786 0 EOF\n"
	}
	files(t, root, map[string]string{
		"locks":    line("", 5) + line("-> ", 7) + line("", 7) + line("-> ", 5) + line("-> ", 8),
		"5/cgroup": "0::/a\n", "5/comm": "deploy\n", "5/stat": stat(5, "deploy"), "7/cgroup": "0::/a\n", "7/comm": "deploy\n", "7/stat": stat(7, "deploy"),
	})
	at := levels{time.Now(), waitsForOthers(h)}
	fs := lockWaitFacts(h, []levels{at, {time.Now(), nil}, at})
	if len(fs) != 1 || fs[0].Name != fact.LockCycle || fs[0].Value != 2 || fs[0].Subject.Command != "deploy" {
		t.Errorf("%+v", fs)
	}
	if fs := lockWaitFacts(h, []levels{at, {time.Now(), nil}}); len(fs) > 0 {
		t.Errorf("it has ended: %+v", fs)
	}
}

func stat(pid int, comm string) string {
	return strconv.Itoa(pid) + " (" + comm + ") S 1" + strings.Repeat(" 0", 48) + "\n"
}

// Threads that wait for the reader of a datagram socket are found until it reads. The writers are
// logger(1) of util-linux, which does not wait in user space.
func TestSocketWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	reader, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	text, err := os.ReadFile("/proc/sys/net/unix/max_dgram_qlen")
	room, err2 := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const waiting = 4
	for range room + 1 + waiting { // one more than max_dgram_qlen fits
		c := exec.CommandContext(ctx, "logger", "--socket", path, "--size", "100", "a message")
		c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Wait() })
	}
	h := Host{Proc: proc.Host}
	count := func() (n float64) {
		r := &stuckReader{host: h, waits: make(map[thread]string)}
		if err := r.scan(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		for _, f := range readerWaits(h, r.waits) {
			if f.Subject.Command == "logger" {
				n += f.Value
			}
		}
		return n
	}
	poll.Until(t, "writers wait", func() bool { return count() == waiting })
	buf := make([]byte, 1024)
	for range room + 1 + waiting {
		if _, err := reader.Read(buf); err != nil {
			t.Fatal(err)
		}
	}
	poll.Until(t, "no writer waits", func() bool { return count() == 0 })
}

// A writer to a pipe is found while nothing reads, and not if it has written something in between.
func TestPipeWaits(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	c := exec.CommandContext(t.Context(), "dd", "if=/dev/zero", "bs=4096")
	c.Stdout = out
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Wait() })
	_ = out.Close()
	h := Host{Proc: proc.Host}
	scan := func() map[thread]string {
		r := &stuckReader{host: h, waits: make(map[thread]string)}
		if err := r.scan(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		return r.waits
	}
	writer := thread{c.Process.Pid, c.Process.Pid}
	poll.Until(t, "the pipe is full", func() bool { return scan()[writer] != "" })
	before := scan()
	found := func() bool {
		return slices.ContainsFunc(readerWaits(h, before), func(f fact.Fact) bool {
			return f.Name == fact.PipeWaits && f.Subject.Pid == writer.pid && f.Value >= 1
		})
	}
	if !found() {
		t.Errorf("no writer of a full pipe among %v", readerWaits(h, before))
	}
	if _, err := io.ReadFull(in, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the pipe is full again", func() bool { return waitsForReader(h, writer) != "" })
	if found() {
		t.Errorf("a writer that has written since: %v", readerWaits(h, before))
	}
}
