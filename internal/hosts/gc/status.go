package gc

import (
	"context"

	"holdfast"
)

// Status is the current state of a collector.
type Status struct {
	Enabled  bool   `json:"enabled"`
	Disk     Disk   `json:"disk"`
	Level    Level  `json:"level"`
	High     Amount `json:"high"`
	Low      Amount `json:"low"`
	Critical Amount `json:"critical"`
	// Links reports whether files are linked into the trash before a removal.
	// NoLinks gives the reason if they are not, or "" if linking has no use.
	Links    bool   `json:"links"`
	NoLinks  string `json:"no_links,omitempty"`
	Running  bool   `json:"running"`   // a cycle runs, in this process or another
	UnderWay int    `json:"under_way"` // spin-ups that a deletion would wait for
	Last     *Cycle `json:"last,omitempty"`
	// Beside counts spin-ups during which a deletion ran, Without all others.
	Beside    Figures         `json:"beside_deletions"`
	Without   Figures         `json:"without"`
	Suspended holdfast.Millis `json:"suspended_ms"` // sum over all cycles
}

// Status returns the current state. It checks the disk once.
func (c *Collector) Status(ctx context.Context) (Status, error) {
	s, disk, err := c.look(ctx)
	if err != nil {
		return Status{}, err
	}
	out := Status{
		Enabled: c.cfg.Enabled, Disk: disk, Level: c.cfg.LevelOf(disk), High: c.cfg.High, Low: c.cfg.Low, Critical: c.cfg.Critical,
		Links: s.layers != nil && c.cfg.Link, NoLinks: s.why,
	}
	if s.layers != nil && !c.cfg.Link {
		out.NoLinks = "link is off"
	}
	out.UnderWay, _ = c.d.Spinups.UnderWay()
	cycles, err := c.d.Store.Cycles(1)
	if err != nil {
		return out, err
	}
	if len(cycles) > 0 {
		out.Last = &cycles[0]
		out.Running = !cycles[0].Ended && c.held(s)
	}
	h, err := c.harm()
	if err != nil {
		return out, err
	}
	out.Beside, out.Without, out.Suspended = h.Beside.figures(), h.Without.figures(), h.Suspended
	return out, nil
}

// harm returns the record of this process, or the one saved by an earlier
// process.
func (c *Collector) harm() (Harm, error) {
	if c.running.Load() {
		return c.stats.now(), nil
	}
	return c.d.Store.Harm()
}

// held reports whether any process holds the lock of a cycle.
func (c *Collector) held(s site) bool {
	if !c.cycle.TryLock() {
		return true
	}
	defer c.cycle.Unlock()
	f, err := lockCycle(s.local, c.d.LockDir)
	if err != nil {
		return true
	}
	f.Close()
	return false
}
