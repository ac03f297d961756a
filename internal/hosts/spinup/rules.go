package spinup

import (
	"fmt"
	"time"
)

// Config is the configuration of measuring.
type Config struct {
	Slow Rules `yaml:"slow"`
	Keep Keep  `yaml:"keep"`
}

// DefaultConfig returns the default configuration.
func DefaultConfig() Config { return Config{Slow: DefaultRules(), Keep: DefaultKeep()} }

// Validate validates the configuration; the error begins with the key.
func (c Config) Validate() error {
	if err := c.Slow.Validate(); err != nil {
		return fmt.Errorf("slow.%w", err)
	}
	if err := c.Keep.Validate(); err != nil {
		return fmt.Errorf("keep.%w", err)
	}
	return nil
}

// Rules define when a phase is slow. A rule of 0 is off.
type Rules struct {
	// Download and Extract are slow below this many MiB/s.
	Download float64 `yaml:"download_mib_s"`
	Extract  float64 `yaml:"extract_mib_s"`
	// Create, Start and Ready are slow above these durations.
	Create time.Duration `yaml:"create"`
	Start  time.Duration `yaml:"start"`
	Ready  time.Duration `yaml:"ready"`
	// MinPull: pulls that took less are not judged by throughput.
	MinPull time.Duration `yaml:"min_pull"`
}

// DefaultRules returns CircleCI's rules, as published in "Docker spin-up" (2021),
// for download, extract, create and the minimum pull. It has none for start and
// ready; docs/spin-up.md gives the reason for each.
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
			return fmt.Errorf("%s: it must not be negative", key)
		}
	}
	return nil
}

// Verdict is the result of a rule for one phase of one spin-up.
type Verdict struct {
	Phase Phase   `json:"phase"`
	Value float64 `json:"value"` // MiB/s for download and extract, otherwise seconds
	Limit float64 `json:"limit"`
	Slow  bool    `json:"slow"`
}

// Judge applies the rules to the phases that can be judged, in their order. A
// phase is not judged if its rule is off or it failed. The throughput of a pull
// is not judged if it is unknown, if another pull fetched layers, or if the pull
// was shorter than MinPull.
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

// Slow returns the slow phases of a spin-up.
func (r Rules) Slow(rec Record) []Phase {
	var out []Phase
	for _, v := range r.Judge(rec) {
		if v.Slow {
			out = append(out, v.Phase)
		}
	}
	return out
}

// whole returns the MiB/s below which a pull as a whole is slow. Its download and
// its extraction, one after the other, take bytes/Download + bytes/Extract if
// both are just fast enough. If the pull took longer, one of them was slow.
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

// value returns the judged value of a phase: MiB/s, or seconds.
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
