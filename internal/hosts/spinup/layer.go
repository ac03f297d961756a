package spinup

import (
	"slices"
	"strings"
	"time"

	"holdfast/internal/platform/engine"
)

// An engine with a graph driver reports the progress of a layer after 1 % or 512 KiB,
// whichever comes first (moby, daemon/internal/progress/progressreader.go). It reads in
// pieces of 32 KiB.
const (
	firstCount = 512 << 10
	firstSlack = 64 << 10
)

// The time from the announcement of a layer that another pull is fetching to its first
// progress. The engine reports both in the same answer. Measured: 0.02 to 4 ms, and 27
// ms on a host with 45 runnable processes on two CPUs.
//
// A part that is larger than a first count alone proves a join: only the next count
// could overwrite the line of the first one, and it comes at least 100 ms later. A
// complete layer may also have arrived between two lines, but not within atOnce, because
// a fetch first takes a round trip to the registry.
const (
	partAtOnce = time.Second
	atOnce     = 25 * time.Millisecond
)

// biggest is the largest accepted size of a layer, 64 TiB. It keeps sums from
// overflowing.
const biggest = 1 << 46

// layer follows one layer through the stream.
type layer struct {
	id        string
	state     State
	announced time.Duration

	size  int64 // largest reported, 0 for none
	given int64 // from the manifest, 0 for none
	base  int64 // what earlier attempts brought
	total int64 // of this attempt
	count int64 // of this attempt
	prior int64 // count before the last, in case a failure filled the bar up

	download []interval // open while state is Downloading
	retry    []interval // open while state is Retrying
	extract  interval   // open while state is Extracting

	counts counts // of the containerd image store

	position   int64 // in bytes, of the current state
	told       bool  // an event after the announcement was seen
	extracting bool  // an Extracting was seen
	downloaded time.Duration
	finished   time.Duration
	present    bool  // its bytes were on this host
	joined     bool  // seen: a part was present at once
	shared     bool  // known: another measured pull fetches it
	jumped     bool  // all of it was present at once; its size decides what that means
	exact      bool  // the times are the store's, not those of the lines
	had        int64 // bytes that an earlier pull had left; exact only
}

// knownSize returns the compressed size in bytes, 0 if unknown. The manifest's
// size takes precedence.
func (l *layer) knownSize() int64 {
	if l.given > 0 {
		return l.given
	}
	return l.size
}

// add processes one line. at never decreases.
func (l *layer) add(ev engine.PullEvent, at time.Duration, containerd bool) {
	if l.state == Complete || l.state == Present && ev.Status != "Extracting" {
		return
	}
	switch {
	case ev.Status == "Pulling fs layer":
	case ev.Status == "Already exists":
		if !l.told {
			l.state, l.present, l.told = Present, true, true
		}
	case ev.Status == "Waiting":
		if !l.told {
			l.state = Waiting
		}
	case ev.Status == "Downloading":
		l.downloading(ev, at, containerd)
	case strings.HasPrefix(ev.Status, "Retrying in "):
		l.retrying(at)
	case ev.Status == "Verifying Checksum", ev.Status == "Download complete":
		l.complete(at, containerd)
	case ev.Status == "Extracting":
		l.extractingAt(ev, at, containerd)
	case ev.Status == "Pull complete":
		l.complete(at, containerd)
		l.finish(at)
	}
}

func (l *layer) downloading(ev engine.PullEvent, at time.Duration, containerd bool) {
	if l.state == Downloaded || l.state == Extracting {
		return // late, or not from this engine
	}
	count, total := bounded(ev.Current), bounded(ev.Total)
	within := partAtOnce
	if count >= total {
		within = atOnce
	}
	if !l.told && !containerd && at-l.announced < within && count > firstCountOf(total) {
		l.joined = true
	}
	l.told = true
	if l.state != Downloading {
		l.closeRetry(at)
		l.download = append(l.download, interval{at, at})
		l.begin(total)
		l.state = Downloading
	}
	l.size, l.total = max(l.size, total), max(l.total, total)
	if count != l.count {
		l.prior, l.count = l.count, count
	}
	l.position = l.sofar()
	l.counts.note(l.position, at)
	l.touch(at)
}

// begin starts an attempt of total bytes. After a resume these are the remaining
// bytes.
func (l *layer) begin(total int64) {
	l.base = 0
	again := len(l.download) > 1 || len(l.retry) > 0
	if size := max(l.knownSize(), l.size); again && total > 0 && total < size {
		l.base = size - total
	}
	l.total, l.count, l.prior = total, 0, 0
}

// sofar returns the position in the layer that this attempt has reached.
func (l *layer) sofar() int64 {
	n := l.base + l.count
	if size := l.knownSize(); size > 0 {
		n = min(n, size)
	}
	return n
}

// firstCountOf returns the maximum first count of a layer of total bytes in an
// own download.
func firstCountOf(total int64) int64 {
	if total > 0 {
		return min(total/100, firstCount) + firstSlack
	}
	return firstCount + firstSlack
}

func (l *layer) retrying(at time.Duration) {
	if l.state != Downloading && l.state != Downloaded && l.state != Announced && l.state != Waiting {
		return
	}
	l.told = true
	l.touch(at)
	l.retry = append(l.retry, interval{at, at})
	l.state = Retrying
	// A reader that fails fills the bar up.
	if l.total > 0 && l.count >= l.total {
		l.count = l.prior
	}
	l.position = l.sofar()
}

// complete ends the download.
func (l *layer) complete(at time.Duration, containerd bool) {
	if l.state == Downloaded || l.state == Extracting {
		return
	}
	if !l.told && !containerd && at-l.announced < atOnce {
		l.jumped = true
	}
	l.told = true
	l.touch(at)
	l.closeRetry(at)
	if l.state == Downloading {
		l.counts.note(l.knownSize(), at)
	}
	l.state, l.downloaded = Downloaded, at
	l.position = 0
}

func (l *layer) extractingAt(ev engine.PullEvent, at time.Duration, containerd bool) {
	l.complete(at, containerd)
	if ev.Units == "" {
		l.size = max(l.size, bounded(ev.Total))
		l.position = bounded(ev.Current)
	}
	if !l.extracting {
		l.extracting, l.state = true, Extracting
		l.extract = interval{at, at}
	}
	l.touch(at)
}

// finish ends the layer: the engine has registered it.
func (l *layer) finish(at time.Duration) {
	l.touch(at)
	l.state, l.position, l.finished = Complete, 0, at
}

// asOf returns a copy in which open intervals end now.
func (l *layer) asOf(now time.Duration) *layer {
	copied := *l
	copied.download, copied.retry = slices.Clone(l.download), slices.Clone(l.retry)
	copied.touch(now)
	return &copied
}

// touch extends the open interval to at.
func (l *layer) touch(at time.Duration) {
	switch l.state {
	case Downloading:
		l.download[len(l.download)-1].to = at
	case Retrying:
		l.retry[len(l.retry)-1].to = at
	case Extracting:
		l.extract.to = at
	}
}

func (l *layer) closeRetry(at time.Duration) {
	if l.state == Retrying {
		l.touch(at)
	}
}

// fetched returns how many bytes the transfer of this layer brought, by this pull
// or another, and whether that is exact.
func (l *layer) fetched() (int64, bool) {
	if l.present {
		return 0, true
	}
	switch l.state {
	case Downloaded, Extracting, Complete:
		if size := l.knownSize(); size > 0 {
			return max(size-l.had, 0), true
		}
		return l.base + l.count, false
	case Downloading, Retrying:
		n := l.count
		if l.state == Downloading && l.total > 0 && n >= l.total {
			n = l.prior
		}
		n += l.base
		if size := l.knownSize(); size > 0 {
			n = min(n, size)
		}
		return n, false
	}
	return 0, true
}

// extracted returns how many compressed bytes were extracted, and whether that is
// known.
func (l *layer) extracted() (int64, bool) {
	if l.state == Complete {
		return l.knownSize(), l.knownSize() > 0
	}
	return l.position, false
}

func bounded(n int64) int64 { return min(max(n, 0), biggest) }
