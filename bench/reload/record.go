package reload

import (
	"errors"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// reason is why a client got no right answer; fine is that it got one.
type reason uint8

const (
	fine reason = iota
	refused
	reset
	noAnswer
	wrongStatus
	wrongAnswer
	tooLate
	noSocket
	reasons
)

func (r reason) String() string {
	return [reasons]string{"", "refused", "reset", "closed without an answer", "an error for an answer", "a wrong answer",
		"no answer in time", "no socket for the client"}[r]
}

func reasonOf(err error) reason {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return refused
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNABORTED):
		return reset
	case errors.Is(err, unix.ETIMEDOUT):
		return tooLate
	}
	return noSocket // no port, no descriptor, no memory
}

// request is one client's result: when it was due after the load began, and how
// long after that it had its answer, in microseconds.
type request struct {
	due, wait uint32
	why       reason
}

// recording is what the clients of one load saw. It belongs to one goroutine.
type recording struct {
	began    time.Time
	took     time.Duration
	requests []request // in the order in which they ended
}

func newRecording() *recording { return &recording{requests: make([]request, 0, 1<<16)} }

func (r *recording) add(due, end time.Duration, why reason) {
	r.requests = append(r.requests, request{micros(due), micros(end - due), why})
}

// micros saturates at 71 minutes.
func micros(d time.Duration) uint32 {
	return uint32(min(max(d.Microseconds(), 0), math.MaxUint32))
}

// failed counts who got no right answer, by reason.
func (r *recording) failed() (total int, by map[string]int) {
	by = map[string]int{}
	for _, q := range r.requests {
		if q.why != fine {
			total++
			by[q.why.String()]++
		}
	}
	return total, by
}

// waits are quantiles of what the clients waited who were answered, in
// milliseconds.
type waits struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// waits sums the answered clients up, by nearest rank.
func (r *recording) waits() waits {
	var all []uint32
	for _, q := range r.requests {
		if q.why == fine {
			all = append(all, q.wait)
		}
	}
	if len(all) == 0 {
		return waits{}
	}
	slices.Sort(all)
	rank := func(q float64) float64 { return float64(all[max(0, int(math.Ceil(q*float64(len(all))))-1)]) / 1000 }
	return waits{P50: rank(0.50), P95: rank(0.95), P99: rank(0.99), Max: rank(1)}
}
