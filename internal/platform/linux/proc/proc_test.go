package proc_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"holdfast/internal/platform/linux/proc"
	"holdfast/test/poll"
)

// A process may choose any comm, even one that looks like the rest of the line.
func TestParseStatWithAnyComm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := proc.Stat{
			Pid:   rapid.IntRange(1, 1<<22).Draw(t, "pid"),
			Comm:  string(rapid.SliceOfN(rapid.SampledFrom([]byte("a) (1 S\n\t\\Z")), 0, 15).Draw(t, "comm")),
			State: rapid.SampledFrom([]byte("RSDZTtXI")).Draw(t, "state"),
			PPid:  rapid.IntRange(0, 1<<22).Draw(t, "ppid"),
			Flags: rapid.Uint64().Draw(t, "flags"),
			Start: rapid.Uint64().Draw(t, "start"),
		}
		line := fmt.Sprintf("%d (%s) %c %d%s %d%s %d 0 0\n", want.Pid, want.Comm, want.State, want.PPid, strings.Repeat(" -1", 4), want.Flags, strings.Repeat(" -1", 12), want.Start)
		got, err := proc.ParseStat([]byte(line))
		if err != nil || got != want {
			t.Fatalf("%q: got %+v, %v, want %+v", line, got, err, want)
		}
	})
}

func FuzzParseStat(f *testing.F) {
	self, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{string(self), "", "1 (", "1 ()", "1 (a) S", ") (", "1 (a)\x00" + strings.Repeat(" 1", 30)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := proc.ParseStat(b); err == nil && !strings.Contains(string(b), s.Comm) {
			t.Errorf("comm %q is not in %q", s.Comm, b)
		} else if err != nil && !errors.Is(err, proc.ErrFormat) {
			t.Errorf("untyped error %v", err)
		}
	})
}

func FuzzParseNSpid(f *testing.F) {
	for _, s := range []string{"", "NSpid:", "NSpid:\t1\n", "Name:\tNSpid:\nNSpid:\t12\t3\t1\n", "NSpid:\t-1\n", "NSpid: x"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		pids, err := proc.ParseNSpid(b)
		if (err == nil) != (len(pids) > 0) {
			t.Errorf("%q: %v, %v", b, pids, err)
		}
		for _, p := range pids {
			if p < 0 {
				t.Errorf("%q: %v", b, pids)
			}
		}
	})
}

func TestOurselves(t *testing.T) {
	s, err := proc.Host.Stat(os.Getpid())
	if err != nil || s.Pid != os.Getpid() || s.PPid != os.Getppid() || s.Start == 0 {
		t.Errorf("stat: %+v, %v", s, err)
	}
	pids, err := proc.Host.NSpid(os.Getpid())
	if err != nil || pids[0] != os.Getpid() {
		t.Errorf("NSpid: %v, %v", pids, err)
	}
	args, err := proc.Host.Cmdline(os.Getpid())
	if err != nil || !slices.Equal(args, os.Args) {
		t.Errorf("command line: %q, %v", args, err)
	}
	if up, err := proc.Host.Ancestors(os.Getpid()); err != nil || len(up) == 0 || up[0] != os.Getppid() {
		t.Errorf("ancestors: %v, %v", up, err)
	}
	if all, err := proc.Host.Pids(); err != nil || !slices.Contains(all, os.Getpid()) {
		t.Errorf("pids: %v, %v", all, err)
	}
	exe, err := proc.Host.Exe(os.Getpid())
	if want, e := os.Executable(); err != nil || e != nil || exe != want {
		t.Errorf("executable: %q, %v, want %q, %v", exe, err, want, e)
	}
}

func TestKilled(t *testing.T) {
	for text, want := range map[string]bool{
		"Name:\tx\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000000100\n": false,
		"SigPnd:\t0000000000000000\nShdPnd:\t0000000000004100\n":                                      true,
		"SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n":                                      true,
		"SigPnd:\t0000000000000000\nShdPnd:\t0000000000004000\n":                                      false,
	} {
		if got, err := proc.ParseKilled([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "SigPnd:\t0000000000000000\n", "SigPnd:\tx\nShdPnd:\t0000000000000000\n"} {
		if _, err := proc.ParseKilled([]byte(text)); !errors.Is(err, proc.ErrFormat) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if killed, err := proc.Host.Killed(os.Getpid()); err != nil || killed {
		t.Errorf("ourselves: %v, %v", killed, err)
	}
}

func TestExiting(t *testing.T) {
	child := exec.Command("true")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	poll.Until(t, "the child is a zombie", func() bool {
		s, err := proc.Host.Stat(child.Process.Pid)
		return err == nil && s.State == 'Z'
	})
	if s, err := proc.Host.Stat(child.Process.Pid); err != nil || !s.Exiting() {
		t.Errorf("of a zombie: %+v, %v", s, err)
	}
	if s, err := proc.Host.Stat(os.Getpid()); err != nil || s.Exiting() {
		t.Errorf("of this process: %+v, %v", s, err)
	}
}

func TestGoneProcess(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := proc.Host.Stat(cmd.Process.Pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// Where returns the function on top of the stack, or else the wchan.
func TestWhere(t *testing.T) {
	root := t.TempDir()
	write := func(pid, file, text string) {
		if err := os.MkdirAll(filepath.Join(root, pid), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, pid, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1", "stack", "[<0>] request_wait_answer+0x12c/0x200 [fuse]\n[<0>] fuse_simple_request+0x1\n")
	write("1", "wchan", "other")
	write("2", "wchan", "do_wait")
	write("3", "wchan", "0")
	for pid, want := range map[int]string{1: "request_wait_answer", 2: "do_wait", 3: "", 4: ""} {
		if got := proc.FS(root).Where(pid); got != want {
			t.Errorf("%d: got %q, want %q", pid, got, want)
		}
	}
}
