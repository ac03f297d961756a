package agent

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"holdfast/test/poll"
)

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// inits maps keys to the pids of their containers' inits.
func (h *host) inits() map[string]int {
	h.t.Helper()
	out := map[string]int{}
	for key, ids := range h.running() {
		c, err := h.api().Inspect(h.t.Context(), ids[0])
		if err != nil {
			h.t.Fatal(err)
		}
		out[key] = c.Pid
	}
	return out
}

// alive reports whether a process is alive; a zombie is not. The kernel knows of a death
// before the engine does.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[0]
	if state != "Z" && state != "X" {
		return true
	}
	// Its first thread has ended. Its open files, and so its locks, stay until the last one has.
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err == nil && len(threads) > 1
}

// findDeadman returns the pid of the host's deadman, 0 for none.
func (h *host) findDeadman() int {
	h.t.Helper()
	for _, p := range processes(h.t) {
		if len(p.args) >= 3 && p.args[1] == "deadman" && p.args[2] == filepath.Join(h.dir, "run") {
			return p.pid
		}
	}
	return 0
}

// deadman is findDeadman. It fails the test if no deadman runs.
func (h *host) deadman() int {
	h.t.Helper()
	pid := h.findDeadman()
	if pid == 0 {
		h.t.Fatalf("%s has no deadman", h.node)
	}
	return pid
}

// endDeadman kills the deadman, if any.
func (h *host) endDeadman() {
	h.t.Helper()
	pid := h.findDeadman()
	if pid == 0 {
		return
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		h.t.Error(err)
	}
	poll.Until(h.t, "the deadman is dead", func() bool { return !alive(pid) })
}

// process is a process of this machine.
type process struct {
	pid  int
	args []string
}

// has reports whether its command line contains the words in sequence.
func (p process) has(words ...string) bool {
	for i := range p.args {
		if rest := p.args[i:]; len(rest) >= len(words) && slices.Equal(rest[:len(words)], words) {
			return true
		}
	}
	return false
}

// processes returns all processes with a command line.
func processes(t *testing.T) []process {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var all []process
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // it has just ended
		}
		pid, err := strconv.Atoi(strings.Split(f, "/")[2])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, process{pid, strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")})
	}
	return all
}
