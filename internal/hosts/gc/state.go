package gc

import (
	"time"

	"holdfast/internal/platform/engine"
)

// State is all that a plan is made from.
type State struct {
	Now        time.Time
	Disk       Disk
	Images     []Image
	Containers []Container
	Networks   []Network
	Volumes    []Volume
	// LayerSize is the size of layers by chain id, in bytes.
	LayerSize map[string]int64
	// Blind is until when uses may have been missed; whatever was used
	// before may have been used then.
	Blind time.Time
	// Builder is whether the engine's builder may be asked.
	Builder bool
}

// Image is one image with what it is made of.
type Image struct {
	engine.Image
	Layers  []string // chain ids, the lowest first
	LastUse time.Time
}

// Container is one container with when it was of use last.
type Container struct {
	engine.Holder
	LastUse time.Time // it ended, or was created where it never ran
}

// Network is one network with when a container named it last.
type Network struct {
	engine.Network
	LastUse time.Time
}

// Volume is one volume with when it was seen in use last.
type Volume struct {
	engine.Volume
	LastUse time.Time
}

// Disk is the room on the file system of the data root.
type Disk struct {
	Total      int64 `json:"total"` // bytes
	Free       int64 `json:"free"`  // bytes that anybody but root can have
	Inodes     int64 `json:"inodes"`
	FreeInodes int64 `json:"free_inodes"`
}

// Used are the bytes that are taken.
func (d Disk) Used() int64 { return d.Total - d.Free }

// over reports whether more than the mark is used, of bytes or, where the mark
// is a share, of inodes.
func (d Disk) over(mark Amount) bool {
	if d.Total > 0 && d.Used() > mark.Of(d.Total) {
		return true
	}
	return mark.Percent > 0 && d.Inodes > 0 && d.Inodes-d.FreeInodes > mark.Of(d.Inodes)
}

// Level is how full the disk is by the marks.
type Level string

// The levels.
const (
	Roomy    Level = "ok"       // at or under the low mark
	Between  Level = "between"  // over the low mark, under the high one
	Pressed  Level = "high"     // over the high mark
	Critical Level = "critical" // over the critical mark
)

// knows reports whether an amount of the disk means something: a share of an
// unknown total does not.
func (d Disk) knows(a Amount) bool { return a.Percent == 0 || d.Total > 0 }

// LevelOf tells how full a disk is.
func (c Config) LevelOf(d Disk) Level {
	switch {
	case d.over(c.Critical):
		return Critical
	case d.over(c.High):
		return Pressed
	case d.over(c.Low):
		return Between
	}
	return Roomy
}

// urgent reports whether deletions wait for nobody any more: a tenth of the way
// from the high mark to the critical one before that, so that there is time to
// delete something before the disk gets there.
func (c Config) urgent(d Disk) bool {
	over := func(used, whole int64) bool {
		critical := c.Critical.Of(whole)
		return whole > 0 && used > critical-max(critical-c.High.Of(whole), 0)/10
	}
	return over(d.Used(), d.Total) || c.Critical.Percent > 0 && over(d.Inodes-d.FreeInodes, d.Inodes)
}

// Goal is the room that a deletion is for: once it is there, it need not be. The
// zero Goal is never reached.
type Goal struct {
	Free       int64 `json:"free,omitempty"`        // bytes
	FreeInodes int64 `json:"free_inodes,omitempty"` //
}

func (g Goal) reached(d Disk) bool {
	return g != Goal{} && d.Free >= g.Free && (g.FreeInodes == 0 || d.FreeInodes >= g.FreeInodes)
}

// goalOf is what a rule wants of the disk, and whether it wants anything now. Of
// a disk that is not known, and of inodes that a file system does not count,
// nobody wants anything: it could never be reached.
func (c Config) goalOf(r Rule, d Disk, pressed bool) (g Goal, wanted bool) {
	if r.Pressure && pressed {
		g.Free = d.Total - c.Low.Of(d.Total)
		if c.Low.Percent > 0 && d.Inodes > 0 {
			g.FreeInodes = d.Inodes - c.Low.Of(d.Inodes)
		}
	}
	if d.Total > 0 {
		g.Free = max(g.Free, r.MinFree.Of(d.Total))
	}
	if d.Inodes > 0 {
		g.FreeInodes = max(g.FreeInodes, r.MinFreeInodes.Of(d.Inodes))
	}
	return g, g != Goal{} && !g.reached(d)
}
