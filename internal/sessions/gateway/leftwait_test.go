package gateway

import (
	"testing"
	"testing/synctest"
	"time"

	"holdfast"
	"holdfast/internal/sessions/gateway/closing"
)

// TestLeaveSignalIsAwaitedOnce: after its server broke the connection, a request waits
// once for the signal that the session left.
func TestLeaveSignalIsAwaitedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		request request
		want    time.Duration
	}{
		"here":             {request{again: true}, closing.LeftWait},
		"on another node":  {request{again: true, route: holdfast.Route{Node: "n2"}}, 0},
		"not to be resent": {request{}, closing.LeftWait}, // the answer depends on it
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				if (&history{}).allows(t.Context(), &c.request, &brokenError{error: errFailed}) {
					t.Error("the request is sent again to a session that has not left")
				}
				if took := time.Since(begun); took != c.want {
					t.Errorf("waited %v, want %v", took, c.want)
				}
			})
		})
	}
}
