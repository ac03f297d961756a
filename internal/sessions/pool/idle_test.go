package pool

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := false
		q := Idle{Busy: func() bool { return busy }}
		want := func(now bool) {
			t.Helper()
			if q.Now() != now {
				t.Errorf("idle is %v", !now)
			}
		}
		want(false) // the first call
		time.Sleep(IdleTime - time.Nanosecond)
		want(false)
		time.Sleep(time.Nanosecond)
		want(true)
		busy = true
		want(false)
		busy = false
		want(false)
		time.Sleep(IdleTime)
		want(true)
		if always := (&Idle{since: time.Now().Add(-IdleTime)}); !always.Now() {
			t.Error("not idle without Busy")
		}
	})
}
