package gc

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind is the kind of object that a rule applies to.
type Kind string

// The kinds.
const (
	Stopped    Kind = "stopped"     // containers that ran and exited
	Created    Kind = "created"     // containers that never started
	Networks   Kind = "network"     // networks that no container's settings name
	Images     Kind = "image"       // images that no container uses
	Volumes    Kind = "volume"      // volumes that no container uses
	BuildCache Kind = "build-cache" // the cache of the engine's builder
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Stopped, Created, Networks, Images, Volumes, BuildCache} }

// Config is the policy and the way in which it is carried out.
type Config struct {
	Enabled bool          `yaml:"enabled"` // collect in the agent
	Every   time.Duration `yaml:"every"`   // interval of disk checks
	// High, Low and Critical limit the used space of the file system of the data
	// root. Given in percent they also apply to its inodes.
	High     Amount `yaml:"high"`     // rules with pressure start here
	Low      Amount `yaml:"low"`      // rules with pressure stop here
	Critical Amount `yaml:"critical"` // from here on deletions do not wait for spin-ups
	// MinAge is the minimum time that an object is kept after its last use.
	MinAge     time.Duration `yaml:"min_age"`
	Keep       []string      `yaml:"keep"`        // patterns of image names to keep
	KeepNewest int           `yaml:"keep_newest"` // number of newest tags to keep in each repository
	Protect    []string      `yaml:"protect"`     // labels, key or key=value, of objects to keep
	Link       bool          `yaml:"link"`        // link files into the trash before a removal, where possible
	Rules      []Rule        `yaml:"rules"`       // applied in order; empty: DefaultRules
}

// Rule selects objects to delete and limits how many. Rules are applied in order,
// the least recently used object first, like BuildKit's (buildkitd.toml(5),
// gcpolicy). A rule without pressure, max_used, min_free and min_free_inodes
// removes every object that it selects.
type Rule struct {
	Name     string   `yaml:"name"`
	Kinds    []Kind   `yaml:"kinds"`
	Match    []string `yaml:"match"`    // patterns of names, any of which must match; empty: all
	Labels   []string `yaml:"labels"`   // key or key=value, all of which must match
	Dangling bool     `yaml:"dangling"` // only images without a name
	// KeepFor is how long an object is kept after its last use.
	KeepFor       time.Duration `yaml:"keep_for"`
	Pressure      bool          `yaml:"pressure"` // only from the high mark until the low mark is reached
	Reserved      Amount        `yaml:"reserved"` // of images or build cache: this much is always kept
	MaxUsed       Amount        `yaml:"max_used"` // of images: the most that may be used
	MinFree       Amount        `yaml:"min_free"` // free space wanted on the disk
	MinFreeInodes Amount        `yaml:"min_free_inodes"`
}

// alwaysProtected are the labels of objects that other parts of Holdfast manage.
var alwaysProtected = [...]string{"holdfast.session", "holdfast.holder", "holdfast.warm", "holdfast.keep"}

// DefaultConfig returns a configuration with collection disabled.
func DefaultConfig() Config {
	return Config{
		Every: 15 * time.Second, High: Percent(85), Low: Percent(75), Critical: Percent(95),
		MinAge: time.Hour, Link: true,
	}
}

// DefaultRules returns the cautious default: without disk pressure only leaked
// networks are removed, with it only what can be pulled or built again. Volumes
// and containers that ran are never removed by default, because no copy of their
// data exists.
func DefaultRules() []Rule {
	return []Rule{
		{Name: "leaked networks", Kinds: []Kind{Networks}, KeepFor: time.Hour}, // counted from the last time that a container named it
		{Name: "images without a name", Kinds: []Kind{Images}, Dangling: true, Pressure: true},
		{Name: "build cache", Kinds: []Kind{BuildCache}, KeepFor: 48 * time.Hour, Pressure: true},
		{Name: "containers that never started", Kinds: []Kind{Created}, KeepFor: 24 * time.Hour, Pressure: true},
		{Name: "images", Kinds: []Kind{Images}, Pressure: true},
	}
}

// rules returns the configured rules, or the defaults.
func (c Config) rules() []Rule {
	if len(c.Rules) == 0 {
		return DefaultRules()
	}
	return c.Rules
}

// maxRules and maxPatterns bound the size of a configuration.
const (
	maxRules    = 100
	maxPatterns = 1000
)

// Validate checks values and their combinations. The error begins with the key
// below gc.
func (c Config) Validate() error {
	if c.Every < time.Second {
		return fmt.Errorf("every: %v is less than one second", c.Every)
	}
	if c.MinAge < 0 || c.KeepNewest < 0 {
		return fmt.Errorf("min_age %v and keep_newest %d must not be negative", c.MinAge, c.KeepNewest)
	}
	for name, mark := range map[string]Amount{"high": c.High, "low": c.Low, "critical": c.Critical} {
		if mark.IsZero() || mark.Bytes < 0 {
			return fmt.Errorf("%s: must be greater than 0", name)
		}
	}
	if !ordered(c.Low, c.High) || !ordered(c.High, c.Critical) {
		return fmt.Errorf("low: the marks must increase: low %v, high %v, critical %v", c.Low, c.High, c.Critical)
	}
	if len(c.Rules) > maxRules || len(c.Keep) > maxPatterns {
		return fmt.Errorf("rules: at most %d rules, and %d patterns in keep, are allowed", maxRules, maxPatterns)
	}
	if slices.Contains(c.Protect, "") || slices.Contains(c.Keep, "") {
		return fmt.Errorf("protect: an empty label or pattern")
	}
	for i, r := range c.Rules {
		if err := r.validate(); err != nil {
			return fmt.Errorf("rules[%d]: %w", i, err)
		}
	}
	return nil
}

// ordered reports whether a is below b. It also returns true if that depends on
// the size of the disk.
func ordered(a, b Amount) bool {
	if (a.Percent > 0) != (b.Percent > 0) {
		return true
	}
	return a.Percent+float64(a.Bytes) < b.Percent+float64(b.Bytes)
}

func (r Rule) validate() error {
	if len(r.Kinds) == 0 {
		return fmt.Errorf("kinds: name at least one of %s", Words(Kinds()))
	}
	for _, k := range r.Kinds {
		if !slices.Contains(Kinds(), k) {
			return fmt.Errorf("kinds: %q is not one of %s", k, Words(Kinds()))
		}
	}
	only := func(kinds ...Kind) bool {
		return !slices.ContainsFunc(r.Kinds, func(k Kind) bool { return !slices.Contains(kinds, k) })
	}
	switch {
	case r.KeepFor < 0:
		return fmt.Errorf("keep_for: %v is negative", r.KeepFor)
	case len(r.Match) > maxPatterns || slices.Contains(r.Match, "") || slices.Contains(r.Labels, ""):
		return fmt.Errorf("match: an empty pattern or label, or more than %d", maxPatterns)
	case r.Dangling && !only(Images):
		return fmt.Errorf("dangling: allowed only for images")
	case !r.Reserved.IsZero() && !only(Images, BuildCache):
		return fmt.Errorf("reserved: allowed only for images and build cache, which have known sizes")
	case !r.MaxUsed.IsZero() && !only(Images):
		return fmt.Errorf("max_used: allowed only for images, which have known sizes")
	case r.MinFreeInodes.Bytes > 1<<40:
		return fmt.Errorf("min_free_inodes: %d are too many", r.MinFreeInodes.Bytes)
	}
	return nil
}

// Words returns the names of kinds, separated by commas.
func Words(kinds []Kind) string {
	var words []string
	for _, k := range kinds {
		words = append(words, string(k))
	}
	return strings.Join(words, ", ")
}

// name returns the rule's name as used in reasons.
func (r Rule) name(i int) string { return cmp.Or(r.Name, fmt.Sprintf("rule %d", i+1)) }

// needsDisk reports whether the rule has a limit that depends on the disk.
func (r Rule) needsDisk() bool {
	return r.Pressure || !r.MinFree.IsZero() || !r.MinFreeInodes.IsZero() || r.MaxUsed.Percent > 0
}

// limited reports whether the rule has a limit at which it stops.
func (r Rule) limited() bool {
	return r.Pressure || !r.MaxUsed.IsZero() || !r.MinFree.IsZero() || !r.MinFreeInodes.IsZero()
}
