// Package quiet tells when a node starts no container, so that what is made ahead of
// need is never made beside a boot.
package quiet

import (
	"cmp"
	"time"
)

// For is how long no container may have been started, unless another time is given.
const For = 100 * time.Millisecond

// Quiet looks at whether it is. It is one goroutine's.
type Quiet struct {
	Busy  func() bool   // a container is being started; nil is never
	Least time.Duration // 0 is For
	since time.Time     // nothing was seen to be started; zero while it is
}

// Now reports whether it is quiet, and has been so for Least at least, as far as
// Now was asked.
func (q *Quiet) Now() bool {
	if q.Busy != nil && q.Busy() {
		q.since = time.Time{}
		return false
	}
	if q.since.IsZero() {
		q.since = time.Now()
	}
	return time.Since(q.since) >= cmp.Or(q.Least, For)
}
