// Package budget decides which sessions' memory is saved in the time that a notice
// leaves, by what is known of their sizes and what was learnt of how fast that
// goes. It reads no clock and touches nothing: Plan is a function of its arguments.
package budget

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Session is one whose memory could be saved.
type Session struct {
	Bytes     int64 // of its image, 0 or more, as far as can be known
	Priority  int   // what is lost with a higher one is the bigger loss
	Connected bool  // clients are connected to it
}

// Limits are what there is.
type Limits struct {
	Time     time.Duration // until the last image has to be away
	Lanes    int           // sessions saved side by side, at least 1
	Memory   int64         // bytes of images that there is room for in memory at a time
	Disk     int64         // the same on disk; 0 is none
	MaxImage int64         // bytes of one image
}

// Place is where an image is while it is made and sent.
type Place int

// The places.
const (
	InMemory Place = iota
	OnDisk
	places // number of places
)

// Saved is a session that is to be saved.
type Saved struct {
	Index int // in what Plan was given
	Place Place
}

// Lost is a session that is not.
type Lost struct {
	Index int
	Why   string
}

// Decision is what Plan comes to.
type Decision struct {
	Save  []Saved       // in the order in which to begin: the biggest loss first
	Lanes int           // that many side by side
	Takes time.Duration // all of them, by the rates; 0 where there is none
	Lost  []Lost        // in the same order
}

// Plan goes through the sessions from the biggest loss to the smallest: by
// priority, then those with clients, then the smaller ones, of which more can be
// saved in the same time. Each that fits beside those taken before is taken: none is
// left out for the sake of a smaller loss. An image is in memory where there is room
// for it, and on disk where that is the only way for it to fit.
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

// set is sessions that are saved together.
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

// placeFor is where one more session could be saved, or why nowhere.
func (s set) placeFor(bytes int64) (at Place, why string) {
	if bytes > s.limits.MaxImage {
		return 0, fmt.Sprintf("it has %s, and an image may have %s", size(bytes), size(s.limits.MaxImage))
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
		return 0, fmt.Sprintf("it has %s, and there is room for %s", size(bytes), size(max(s.limits.Memory, s.limits.Disk, 0)))
	}
	return 0, fmt.Sprintf("it has %s, there are %s, and with it %s would be needed", size(bytes), seconds(s.limits.Time), seconds(needs))
}

func (l Limits) room(at Place) int64 {
	if at == OnDisk {
		return l.Disk
	}
	return l.Memory
}

// lanes is how many are saved side by side: at any moment there is room for so many
// of the biggest.
func (s set) lanes() int {
	n := max(1, s.limits.Lanes)
	for p := range places {
		if s.biggest[p] > 0 {
			n = int(min(int64(n), s.limits.room(p)/s.biggest[p]))
		}
	}
	return max(1, n)
}

// takes is the longest that the set can take: the bytes go one after the other at
// the machine's rate, and what each session takes whatever its size goes in as many
// lanes as there are, which is at worst n/lanes of them and one more (Graham's bound
// on list scheduling: either all lanes are busy, or all that is left has begun).
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
