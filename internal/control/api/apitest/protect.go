package apitest

import (
	"context"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
)

// SetProtection sets what Protection returns.
func (b *Backend) SetProtection(p api.Protection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.protection = p
}

// Protection is the protection of api.Parts.
func (b *Backend) Protection(context.Context) (api.Protection, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.protection, b.fault
}

// SomeProtection returns a protection with every kind of entry.
func SomeProtection() api.Protection {
	ms := func(n int) holdfast.Millis { return holdfast.Millis(time.Duration(n) * time.Millisecond) }
	return api.Protection{
		Totals: []api.HoldTotal{{Backend: "nfqueue"}, {Backend: "park", Holds: 2, Failed: 1, Connections: 21, Longest: ms(30_000)}},
		Holds: []api.Hold{
			{At: Began, Ports: []uint16{80, 443}, Program: "systemctl", Backend: "park", Took: ms(130), Connections: 14, Longest: ms(131), Unanswered: 1, Reason: "a new server listens", Installed: true},
			{At: Began.Add(-time.Hour), Ports: []uint16{80}, Program: "restart", Backend: "park", Took: ms(30_000), Connections: 7, Longest: ms(30_000), Reason: "the time was up", Failed: true, ExitCode: 1},
		},
		Ports: []api.ProtectedPort{{Address: "80", Listening: true, Holds: 2, Connections: 21, Longest: ms(30_000), Since: Began, Waiting: 3, Command: "holdfast protect"}},
	}
}
