package boottime

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestAlarm(t *testing.T) {
	a, err := NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, i := range []Instant{0, Now().Add(-time.Hour), Now().Add(50 * time.Millisecond)} {
		if err := a.Wait(t.Context(), i); err != nil || i.Until() > 0 {
			t.Errorf("it waited until %v before: %v", i.Until(), err)
		}
	}
	// A cancelled wait does not affect the next one.
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if err := a.Wait(ctx, Now().Add(time.Hour)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled wait: %v", err)
	}
	then := Now().Add(30 * time.Millisecond)
	if err := a.Wait(t.Context(), then); err != nil || then.Until() > 0 {
		t.Errorf("after a cancelled wait: %v before, %v", then.Until(), err)
	}
}

// A timer that is set again fires at the new moment, not at the old one.
func TestTimerIsSetAnew(t *testing.T) {
	a, err := NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.timer.Set(-1); err != nil { // before the boot, so due at once; and not read
		t.Fatal(err)
	}
	then := Now().Add(30 * time.Millisecond)
	if err := a.Wait(t.Context(), then); err != nil || then.Until() > 0 {
		t.Errorf("%v before, %v", then.Until(), err)
	}
}
