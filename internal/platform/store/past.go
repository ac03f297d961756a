package store

import (
	"fmt"
	"sync"

	"holdfast"
)

// ErrRestored means that the store was restored from a backup, and that this process
// may not claim until Resume. It wraps holdfast.ErrStore.
var ErrRestored = fmt.Errorf("the store was restored from a backup; claims wait until every node has noticed: %w", holdfast.ErrStore)

// Seen is what a process has seen of a store. The process keeps it for its successor,
// which notices by it that the store was restored meanwhile.
type Seen struct {
	Cluster  uint64            `json:"cluster"`  // identity of the cluster; 0 if the store has none
	Revision holdfast.Revision `json:"revision"` // highest revision of an answer, as the cluster counts
	Epoch    holdfast.Epoch    `json:"epoch"`    // no claim that the process can have seen has a higher one
	Restored bool              `json:"restored"` // claims are refused until Resume
}

// epochStep is the distance by which epochs are raised over those of before a restore.
// The revisions of one cluster reach it after 30 years of 1,000 writes a second.
const epochStep = 1 << 40

// Base returns the number to add to all revisions of a restored store, so that later
// epochs are over Seen.Epoch. base is the present one, and at the store's revision.
// Nodes that have seen nearly the same epochs get the same result.
func (s Seen) Base(base, at holdfast.Revision) holdfast.Revision {
	if base+at >= holdfast.Revision(s.Epoch) {
		return base
	}
	return (holdfast.Revision(s.Epoch)/epochStep + 1) * epochStep
}

// Past notices by the answers of a store that the store was restored from a backup. An
// implementation keeps one. The zero Past has seen nothing. Its methods may be called
// from any goroutine.
type Past struct {
	mu      sync.Mutex
	seen    Seen
	turn    int             // number of restores and resumptions
	changed chan struct{}   // closed and replaced with each turn; nil until the first Turn
	readers map[*Reader]int // turn for which each watch has listed again
}

// Reader is a watch as its Past knows it.
type Reader struct{ _ byte }

// Seen returns what was seen so far.
func (p *Past) Seen() Seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// Remember adds what an earlier process has seen.
func (p *Past) Remember(s Seen) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.seen
	p.seen.Epoch = max(now.Epoch, s.Epoch)
	if s.Restored || now.Cluster != 0 && s.Cluster != 0 && now.Cluster != s.Cluster || now.Revision != 0 && now.Revision < s.Revision {
		p.noticeLocked()
	}
	if now.Revision == 0 {
		p.seen.Cluster, p.seen.Revision = s.Cluster, s.Revision
	}
}

// Mark is what was seen before a call.
type Mark struct {
	cluster  uint64
	revision holdfast.Revision
	turn     int
}

// Mark returns what was seen before a call.
func (p *Past) Mark() Mark {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Mark{p.seen.Cluster, p.seen.Revision, p.turn}
}

// Answered records the answer to a call that began at the mark. base is the number to
// add to the cluster's revisions. Calls overlap, so only an answer below what was seen
// before its call shows a restore.
func (p *Past) Answered(before Mark, cluster uint64, at, base holdfast.Revision) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen.Epoch = max(p.seen.Epoch, holdfast.Epoch(base+at))
	if before.turn != p.turn {
		return // the answer may be of before the restore
	}
	if at < before.revision || before.cluster != 0 && before.cluster != cluster {
		p.seen.Revision = 0
		p.noticeLocked()
	}
	p.seen.Cluster, p.seen.Revision = cluster, max(p.seen.Revision, at)
}

// Notice records other evidence that the store was restored. After the notice it has no
// effect until Resume.
func (p *Past) Notice() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.seen.Restored {
		p.noticeLocked()
	}
}

func (p *Past) noticeLocked() {
	p.seen.Restored = true
	p.turnLocked()
}

func (p *Past) turnLocked() {
	p.turn++
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Resume ends the refusal of claims, after the implementation has raised the epochs:
// use makes it count by them. ErrRestored while a watch has not listed again.
func (p *Past) Resume(use func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.seen.Restored {
		return nil
	}
	for _, turn := range p.readers {
		if turn != p.turn {
			return fmt.Errorf("a watch has not read the restored records yet: %w", ErrRestored)
		}
	}
	use()
	p.seen.Restored = false
	p.turnLocked()
	return nil
}

// Begin adds a watch, and End removes it.
func (p *Past) Begin() *Reader {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := new(Reader)
	if p.readers == nil {
		p.readers = map[*Reader]int{}
	}
	p.readers[r] = p.turn
	if p.seen.Restored {
		p.readers[r]-- // its list may be of before the restore
	}
	return r
}

// End removes a watch.
func (p *Past) End(r *Reader) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.readers, r)
}

// Turn returns the present turn, whether the watch has to list again for it, and a
// channel that is closed with the next turn.
func (p *Past) Turn(r *Reader) (turn int, again bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.turn, p.readers[r] != p.turn, p.changed
}

// Listed records that the watch's reader has the records of a turn.
func (p *Past) Listed(r *Reader, turn int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readers[r] = turn
}
