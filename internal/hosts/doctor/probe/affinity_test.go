package probe

import (
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/proc"
)

// A thread that may use every CPU is not bound; one that may not is, to the CPUs by name.
func TestBoundTo(t *testing.T) {
	h := Host{Proc: proc.Host}
	online, err := readTicks(h)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan [2]string)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		self := thread{os.Getpid(), unix.Gettid()}
		free := boundTo(h, self, online)
		var one unix.CPUSet
		one.Set(0)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Error(err)
		}
		got <- [2]string{free, boundTo(h, self, online)}
	}()
	want := [2]string{"", "cpu0"}
	if len(online) == 2 { // the sum, and the only CPU
		want[1] = ""
	}
	if all := <-got; all != want {
		t.Errorf("%q, want %q", all, want)
	}
	if to := boundTo(h, thread{os.Getpid(), 1 << 30}, online); to != "" {
		t.Errorf("a thread that is gone is bound to %q", to)
	}
}

// Pipes that a program has enlarged count with their size, and few pipes with that of a new one.
func TestPagesOf(t *testing.T) {
	var descriptors []string
	for range enlargedFrom {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 256<<10); err != nil {
			t.Fatal(err)
		}
		descriptors = append(descriptors, strconv.Itoa(int(r.Fd())))
	}
	h, want := Host{Proc: proc.Host}, float64(enlargedFrom*(256<<10)/os.Getpagesize())
	if got := pagesOf(h, os.Getpid(), descriptors); got != want {
		t.Errorf("%v pages, want %v", got, want)
	}
	if got := pagesOf(h, os.Getpid(), descriptors[:3]); got != 3*pipePages {
		t.Errorf("%v pages of three pipes", got)
	}
	if got := pagesOf(h, 1<<30, descriptors); got != enlargedFrom*pipePages {
		t.Errorf("%v pages of a process that is gone", got)
	}
}
