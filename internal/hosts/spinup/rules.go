package spinup

import (
	"fmt"
	"time"
)

// Config is what measuring can be told.
type Config struct {
	Slow Rules `yaml:"slow"`
	Keep Keep  `yaml:"keep"`
}

// DefaultConfig is Config without being told anything.
func DefaultConfig() Config { return Config{Slow: DefaultRules(), Keep: DefaultKeep()} }

// Validate checks all of it; the error begins with the key.
func (c Config) Validate() error {
	if err := c.Slow.Validate(); err != nil {
		return fmt.Errorf("slow.%w", err)
	}
	if err := c.Keep.Validate(); err != nil {
		return fmt.Errorf("keep.%w", err)
	}
	return nil
}

// Rules say what slow is. A rule of 0 is off.
type Rules struct {
	// Download and Extract are slow below that many MiB/s.
	Download float64 `yaml:"download_mib_s"`
	Extract  float64 `yaml:"extract_mib_s"`
	// Create, Start and Ready are slow above.
	Create time.Duration `yaml:"create"`
	Start  time.Duration `yaml:"start"`
	Ready  time.Duration `yaml:"ready"`
	// MinPull: the throughput of pulls that took less says nothing.
	MinPull time.Duration `yaml:"min_pull"`
}

// DefaultRules are CircleCI's, as published in "Docker spin-up" (2021), for
// download, extract, create and the pulls that are left out. For start and
// ready it has none; docs/spin-up.md gives the reason of each.
func DefaultRules() Rules {
	return Rules{
		Download: 20, Extract: 10, MinPull: 5 * time.Second,
		Create: 10 * time.Second, Start: 5 * time.Second, Ready: 10 * time.Second,
	}
}

// Validate checks that no rule is negative.
func (r Rules) Validate() error {
	for key, v := range map[string]float64{
		"download_mib_s": r.Download, "extract_mib_s": r.Extract,
		"create": float64(r.Create), "start": float64(r.Start), "ready": float64(r.Ready), "min_pull": float64(r.MinPull),
	} {
		if !(v >= 0) {
			return fmt.Errorf("%s: it has to be 0 or more", key)
		}
	}
	return nil
}

// Verdict is what a rule says of one phase of one spin-up.
type Verdict struct {
	Phase Phase   `json:"phase"`
	Value float64 `json:"value"` // MiB/s of download and extract, seconds of the rest
	Limit float64 `json:"limit"`
	Slow  bool    `json:"slow"`
}

// Judge applies the rules to the phases that can be judged, in their order. A
// phase is not judged where the rule is off, where it failed, and the
// throughput of a pull where it is not known, or not this pull's own, or the
// pull was shorter than MinPull.
func (r Rules) Judge(rec Record) []Verdict {
	var out []Verdict
	for _, phase := range Phases() {
		value, ok := rec.value(phase)
		limit := r.limit(phase)
		if phase == Download && rec.Pull != nil && rec.Pull.Whole {
			limit = r.whole()
		}
		if !ok || limit <= 0 || rec.Failed == phase || phase.IsRate() && time.Duration(rec.Pull.Took) < r.MinPull {
			continue
		}
		slow := value > limit
		if phase.IsRate() {
			slow = value < limit
		}
		out = append(out, Verdict{Phase: phase, Value: value, Limit: limit, Slow: slow})
	}
	return out
}

// Slow are the phases of a spin-up that were slow.
func (r Rules) Slow(rec Record) []Phase {
	var out []Phase
	for _, v := range r.Judge(rec) {
		if v.Slow {
			out = append(out, v.Phase)
		}
	}
	return out
}

// whole is below how many MiB/s a pull as a whole is slow. Its download and its
// extraction take bytes/Download + bytes/Extract where both are just fast enough, one
// after the other; so where it took longer, one of them was slow.
func (r Rules) whole() float64 {
	if r.Download <= 0 || r.Extract <= 0 {
		return 0
	}
	return 1 / (1/r.Download + 1/r.Extract)
}

func (r Rules) limit(p Phase) float64 {
	switch p {
	case Download:
		return r.Download
	case Extract:
		return r.Extract
	case Create:
		return r.Create.Seconds()
	case Start:
		return r.Start.Seconds()
	case Ready:
		return r.Ready.Seconds()
	}
	return 0
}

// IsRate reports whether a phase is judged by MiB/s.
func (p Phase) IsRate() bool { return p == Download || p == Extract }

// value is what a phase is judged by: MiB/s, or seconds.
func (rec Record) value(p Phase) (float64, bool) {
	if p.IsRate() {
		if rec.Pull == nil || !rec.Pull.Done {
			return 0, false
		}
		v := rec.Pull.Download.Rate
		if p == Extract {
			v = rec.Pull.Extract.Rate
		}
		return v, v > 0
	}
	d, ok := rec.Times[p]
	return time.Duration(d).Seconds(), ok
}
