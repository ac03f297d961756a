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
	"time"
)

// eventually polls until ok or, much later than anything takes, the test fails.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited a minute until %s", what)
}

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

// alive reports whether a process lives; a zombie does not. The engine learns of
// a death later than the kernel.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[0]
	return state != "Z" && state != "X"
}

// findDeadman is the pid of the process that stands behind the host's agent, 0
// where there is none.
func (h *host) findDeadman() int {
	h.t.Helper()
	for _, p := range processes(h.t) {
		if len(p.args) >= 3 && p.args[1] == "deadman" && p.args[2] == filepath.Join(h.dir, "run") {
			return p.pid
		}
	}
	return 0
}

// deadman is findDeadman where there has to be one.
func (h *host) deadman() int {
	h.t.Helper()
	pid := h.findDeadman()
	if pid == 0 {
		h.t.Fatalf("%s has no deadman", h.node)
	}
	return pid
}

// endDeadman kills it, if there is one.
func (h *host) endDeadman() {
	h.t.Helper()
	pid := h.findDeadman()
	if pid == 0 {
		return
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		h.t.Error(err)
	}
	eventually(h.t, "the deadman is dead", func() bool { return !alive(pid) })
}

// process is one of this machine's.
type process struct {
	pid  int
	args []string
}

// has reports whether the words are in its command line, in a row.
func (p process) has(words ...string) bool {
	for i := range p.args {
		if rest := p.args[i:]; len(rest) >= len(words) && slices.Equal(rest[:len(words)], words) {
			return true
		}
	}
	return false
}

// processes are all that there are; those without a command line are none of
// ours.
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
