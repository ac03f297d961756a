package threads

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSpend: each call has its own thread, which ends and is never the first one.
func TestSpend(t *testing.T) {
	wrong := errors.New("wrong")
	var mu sync.Mutex
	threads := map[int]bool{}
	for range 100 {
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				err := Spend(func() error {
					mu.Lock()
					defer mu.Unlock()
					threads[unix.Gettid()] = true
					return wrong
				})
				if err != wrong {
					t.Errorf("it returns %v", err)
				}
			})
		}
		all.Wait()
	}
	if threads[os.Getpid()] {
		t.Error("the first thread was spent")
	}
	for tid := range threads {
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid)); errors.Is(err, os.ErrNotExist) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("thread %d still exists after a minute", tid)
			}
		}
	}
}

// A process that sleeps uses no CPU time.
func TestProcessTime(t *testing.T) {
	before, begun := ProcessTime(), time.Now()
	time.Sleep(50 * time.Millisecond)
	slept := ProcessTime() - before
	if slept < 0 || slept >= time.Since(begun) {
		t.Errorf("%v of %v", slept, time.Since(begun))
	}
	for ProcessTime()-before-slept < 10*time.Millisecond { // it ends because working counts
	}
}
