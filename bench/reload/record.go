package reload

import (
	"errors"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// reason is the cause of a missing or wrong answer; fine stands for a right one.
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

// request is one client's result in microseconds: when it was due after the load's
// start, and the wait from then until its answer.
type request struct {
	due, wait uint32
	why       reason
}

// recording has the results of one load's clients. It belongs to one goroutine.
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

// failed counts the clients without a right answer, by reason.
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

// waits has quantiles of the answered clients' waits in milliseconds.
type waits struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// waits computes the quantiles of the answered clients, by nearest rank.
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
