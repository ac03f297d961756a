// Package poll waits in tests for a state that can only be asked for.
package poll

import (
	"testing"
	"time"
)

// limit is longer than any correct operation takes on a busy host.
const limit = 2 * time.Minute

// Between two checks Until pauses four times as long as the last check took, in these bounds.
const (
	shortest = time.Millisecond
	longest  = 250 * time.Millisecond
)

// Until returns when ok returns true. It fails the test if that takes two minutes; what
// completes the sentence "waited until". Checks take at most a fifth of the time, so that an
// expensive one, such as a command or a list of an engine's containers, does not slow down
// what it waits for. The caller is the test's goroutine.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); ; {
		check := time.Now()
		if ok() {
			return
		}
		if time.Since(begin) > limit {
			t.Fatalf("waited %v until %s", limit, what)
		}
		time.Sleep(min(max(4*time.Since(check), shortest), longest))
	}
}
