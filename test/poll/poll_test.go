package poll

import (
	"testing"
	"testing/synctest"
	"time"
)

// failing is a test that Until may fail.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Helper()               {}
func (f *failing) Fatalf(string, ...any) { f.failed = true; panic(f) }

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, checks := time.Now(), 0
		Until(t, "ten checks are done", func() bool {
			checks++
			time.Sleep(10 * time.Millisecond)
			return checks == 10
		})
		// Nine pauses, of four times a check.
		if took := time.Since(begin); checks != 10 || took != 10*10*time.Millisecond+9*40*time.Millisecond {
			t.Errorf("%d checks in %v", checks, took)
		}
	})
}

func TestUntilFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, f := time.Now(), &failing{TB: t}
		defer func() {
			if recover() != any(f) || !f.failed || time.Since(begin) < limit {
				t.Errorf("failed: %v, after %v", f.failed, time.Since(begin))
			}
		}()
		Until(f, "the impossible happens", func() bool { return false })
	})
}
