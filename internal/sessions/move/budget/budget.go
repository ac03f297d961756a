// Package budget decides which sessions' memory is saved in the time before a node ends.
// It uses the sizes of the images and the measured rates of saving and sending. Plan is a
// pure function.
package budget

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Session is a session whose memory could be saved.
type Session struct {
	Bytes     int64 // estimated size of its image, 0 or more
	Priority  int   // the memory of a higher priority is the bigger loss
	Connected bool  // clients are connected
}

// Limits are the time and the space for saving.
type Limits struct {
	Time     time.Duration // until the last image has to be sent
	Lanes    int           // sessions saved concurrently, at least 1
	Memory   int64         // bytes of images that fit in memory at the same time
	Disk     int64         // the same on disk; 0 means none
	MaxImage int64         // maximum bytes of one image
}

// Place is where an image is stored until it is sent.
type Place int

// The places.
const (
	InMemory Place = iota
	OnDisk
	places // number of places
)

// Saved is a session that is saved.
type Saved struct {
	Index int // in the argument of Plan
	Place Place
}

// Lost is a session that is not saved.
type Lost struct {
	Index int
	Why   string
}

// Decision is the result of Plan.
type Decision struct {
	Save  []Saved       // in the order of their start: the biggest loss first
	Lanes int           // sessions saved concurrently
	Takes time.Duration // estimated duration of all saves; 0 if Save is empty
	Lost  []Lost        // in the same order
}

// Plan selects sessions from the biggest loss to the smallest: by priority, then those
// with clients, then the smaller ones, because more of them can be saved in the same
// time. It selects each session that fits beside those selected before, so it never
// skips a bigger loss in favour of a smaller one. An image is stored in memory if it fits
// there, else on disk.
func Plan(all []Session, l Limits, r Rates) Decision {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return byLoss(all[i], all[j]) })
	var d Decision
	taken := set{limits: l, rates: r}
	for _, i := range order {
		place, why := taken.placeFor(all[i].Bytes)
		if why != "" {
			d.Lost = append(d.Lost, Lost{i, why})
			continue
		}
		taken = taken.with(all[i].Bytes, place)
		d.Save = append(d.Save, Saved{i, place})
	}
	if len(d.Save) > 0 {
		d.Lanes, d.Takes = taken.lanes(), taken.takes()
	}
	return d
}

// byLoss orders the biggest loss first.
func byLoss(a, b Session) int {
	connected := func(s Session) int {
		if s.Connected {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(connected(b), connected(a)), cmp.Compare(a.Bytes, b.Bytes))
}

// set is a set of sessions that are saved.
type set struct {
	limits  Limits
	rates   Rates
	n       int
	biggest [places]int64 // bytes of the largest image, by place
	bytes   [places]int64
}

func (s set) with(bytes int64, at Place) set {
	s.n++
	s.biggest[at] = max(s.biggest[at], bytes)
	s.bytes[at] += bytes
	return s
}

// placeFor returns the place for one more session, or why it cannot be saved.
func (s set) placeFor(bytes int64) (at Place, why string) {
	if bytes > s.limits.MaxImage {
		return 0, fmt.Sprintf("it has %s, and the limit of an image is %s", size(bytes), size(s.limits.MaxImage))
	}
	needs := time.Duration(0)
	for place := range places {
		if bytes > s.limits.room(place) || s.limits.room(place) <= 0 {
			continue
		}
		takes := s.with(bytes, place).takes()
		if takes <= s.limits.Time {
			return place, ""
		}
		if needs == 0 || takes < needs {
			needs = takes
		}
	}
	if needs == 0 {
		return 0, fmt.Sprintf("it has %s, and there is space for %s", size(bytes), size(max(s.limits.Memory, s.limits.Disk, 0)))
	}
	return 0, fmt.Sprintf("it has %s, %s remain, and the saves would take %s with it", size(bytes), seconds(s.limits.Time), seconds(needs))
}

func (l Limits) room(at Place) int64 {
	if at == OnDisk {
		return l.Disk
	}
	return l.Memory
}

// lanes returns how many sessions are saved concurrently. The space always suffices for
// that number of the biggest images.
func (s set) lanes() int {
	n := max(1, s.limits.Lanes)
	for p := range places {
		if s.biggest[p] > 0 {
			n = int(min(int64(n), s.limits.room(p)/s.biggest[p]))
		}
	}
	return max(1, n)
}

// takes returns the longest time that the set can take. All bytes are transferred at the
// machine's rate. The fixed overheads of the sessions run in parallel, one in each lane.
// They take at most n/lanes rounds and one more (Graham's bound on list scheduling: either
// all lanes are busy, or all remaining sessions have started).
func (s set) takes() time.Duration {
	if s.n == 0 {
		return 0
	}
	save, spill, send := s.rates.Save.Pace(), s.rates.Spill.Pace(), s.rates.Send.Pace()
	fixed := save.Fixed
	if s.bytes[OnDisk] > 0 {
		fixed = max(fixed, spill.Fixed)
	}
	fixed += send.Fixed
	rounds := 1.0
	if lanes := s.lanes(); s.n > lanes {
		rounds += float64(s.n) / float64(lanes)
	}
	return time.Duration(rounds*float64(fixed)) + save.bytes(s.bytes[InMemory]) + spill.bytes(s.bytes[OnDisk]) +
		send.bytes(s.bytes[InMemory]+s.bytes[OnDisk])
}

func size(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
