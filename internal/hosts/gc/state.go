package gc

import (
	"time"

	"holdfast/internal/platform/engine"
)

// State is the input of a plan.
type State struct {
	Now        time.Time
	Disk       Disk
	Images     []Image
	Containers []Container
	Networks   []Network
	Volumes    []Volume
	// LayerSize maps chain ids to sizes in bytes.
	LayerSize map[string]int64
	// Blind is the end of the last period in which uses may have been missed. An
	// object last used before it may have been used then.
	Blind time.Time
	// Builder reports whether the engine's builder may be called.
	Builder bool
}

// Image is one image with its layers.
type Image struct {
	engine.Image
	Layers  []string // chain ids, lowest first
	LastUse time.Time
}

// Container is one container with the time of its last use.
type Container struct {
	engine.Holder
	LastUse time.Time // when it exited, or was created if it never ran
}

// Network is one network with the last time that a container named it.
type Network struct {
	engine.Network
	LastUse time.Time
}

// Volume is one volume with the last time that it was seen in use.
type Volume struct {
	engine.Volume
	LastUse time.Time
}

// Disk is the space of the data root's file system.
type Disk struct {
	Total      int64 `json:"total"` // bytes
	Free       int64 `json:"free"`  // bytes available without root privileges
	Inodes     int64 `json:"inodes"`
	FreeInodes int64 `json:"free_inodes"`
}

// Used returns the used bytes.
func (d Disk) Used() int64 { return d.Total - d.Free }

// over reports whether the used bytes exceed mark. A mark in percent also applies
// to inodes.
func (d Disk) over(mark Amount) bool {
	if d.Total > 0 && d.Used() > mark.Of(d.Total) {
		return true
	}
	return mark.Percent > 0 && d.Inodes > 0 && d.Inodes-d.FreeInodes > mark.Of(d.Inodes)
}

// Level is the position of the disk use relative to the marks.
type Level string

// The levels.
const (
	Roomy    Level = "ok"       // at or below the low mark
	Between  Level = "between"  // above the low mark, at or below the high mark
	Pressed  Level = "high"     // above the high mark
	Critical Level = "critical" // above the critical mark
)

// knows reports whether an amount is meaningful for this disk: a share of an
// unknown total is not.
func (d Disk) knows(a Amount) bool { return a.Percent == 0 || d.Total > 0 }

// LevelOf returns the level of a disk.
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

// urgent reports whether deletions no longer wait for spin-ups. That is from one
// tenth of the distance between the high and the critical mark below the critical
// mark, to leave time for deletions before the disk reaches it.
func (c Config) urgent(d Disk) bool {
	over := func(used, whole int64) bool {
		critical := c.Critical.Of(whole)
		return whole > 0 && used > critical-max(critical-c.High.Of(whole), 0)/10
	}
	return over(d.Used(), d.Total) || c.Critical.Percent > 0 && over(d.Inodes-d.FreeInodes, d.Inodes)
}

// Goal is the free space that a deletion is for. If it is reached, the deletion
// is skipped. The zero Goal is never reached.
type Goal struct {
	Free       int64 `json:"free,omitempty"`        // bytes
	FreeInodes int64 `json:"free_inodes,omitempty"` //
}

func (g Goal) reached(d Disk) bool {
	return g != Goal{} && d.Free >= g.Free && (g.FreeInodes == 0 || d.FreeInodes >= g.FreeInodes)
}

// goalOf returns the goal of a rule, and whether the rule applies now. A rule for
// an unknown disk, or for inodes that the file system does not count, never
// applies, because its goal could not be reached.
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
