package quiet

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := false
		q := Quiet{Busy: func() bool { return busy }}
		want := func(now bool) {
			t.Helper()
			if q.Now() != now {
				t.Errorf("it is quiet: %v", !now)
			}
		}
		want(false) // nobody has looked before
		time.Sleep(For - time.Nanosecond)
		want(false)
		time.Sleep(time.Nanosecond)
		want(true)
		busy = true
		want(false)
		busy = false
		want(false)
		time.Sleep(For)
		want(true)
		if always := (&Quiet{since: time.Now().Add(-For)}); !always.Now() {
			t.Error("a quiet that nobody disturbs is none")
		}
	})
}
