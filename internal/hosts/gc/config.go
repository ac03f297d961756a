package gc

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind is what kind of object a rule means.
type Kind string

// The kinds.
const (
	Stopped    Kind = "stopped"     // containers that ran and ended
	Created    Kind = "created"     // containers that never started
	Networks   Kind = "network"     // that no container's settings name
	Images     Kind = "image"       // that no container has
	Volumes    Kind = "volume"      // that no container has
	BuildCache Kind = "build-cache" // of the engine's builder
)

// Kinds are all of them.
func Kinds() []Kind { return []Kind{Stopped, Created, Networks, Images, Volumes, BuildCache} }

// Config is the policy and how it is carried out.
type Config struct {
	Enabled bool          `yaml:"enabled"` // in the agent
	Every   time.Duration `yaml:"every"`   // between two looks at the disk
	// Marks over the used space of the data root's file system; as shares
	// they hold for its inodes too.
	High     Amount `yaml:"high"`     // rules with pressure begin here
	Low      Amount `yaml:"low"`      // and go on until here
	Critical Amount `yaml:"critical"` // from here on not even spin-ups are waited for
	// MinAge is how long at least anything stays after its last use.
	MinAge     time.Duration `yaml:"min_age"`
	Keep       []string      `yaml:"keep"`        // patterns over names that stay
	KeepNewest int           `yaml:"keep_newest"` // tags of each repository that stay
	Protect    []string      `yaml:"protect"`     // labels, key or key=value, of what stays
	Link       bool          `yaml:"link"`        // link files away before a removal, where that can be
	Rules      []Rule        `yaml:"rules"`       // in their order; empty: DefaultRules
}

// Rule says what may go, and how much of it. They are applied in order, the
// least recently used first, in the spirit of BuildKit's (buildkitd.toml(5),
// gcpolicy). A rule without pressure, max_used, min_free or min_free_inodes
// removes all that it means.
type Rule struct {
	Name     string   `yaml:"name"`
	Kinds    []Kind   `yaml:"kinds"`
	Match    []string `yaml:"match"`    // patterns over names, one of them; empty is all
	Labels   []string `yaml:"labels"`   // key or key=value, all of them
	Dangling bool     `yaml:"dangling"` // only images without a name
	// KeepFor is how long something stays after its last use.
	KeepFor       time.Duration `yaml:"keep_for"`
	Pressure      bool          `yaml:"pressure"` // only over the high mark, and until the low one
	Reserved      Amount        `yaml:"reserved"` // of images or build cache, that stay in any case
	MaxUsed       Amount        `yaml:"max_used"` // of images, that may be
	MinFree       Amount        `yaml:"min_free"` // on the disk
	MinFreeInodes Amount        `yaml:"min_free_inodes"`
}

// alwaysProtected are labels of what Holdfast itself keeps track of.
var alwaysProtected = [...]string{"holdfast.session", "holdfast.network", "holdfast.warm", "holdfast.keep"}

// DefaultConfig collects nothing until it is enabled.
func DefaultConfig() Config {
	return Config{
		Every: 15 * time.Second, High: Percent(85), Low: Percent(75), Critical: Percent(95),
		MinAge: time.Hour, Link: true,
	}
}

// DefaultRules are careful: without pressure only what leaks goes, with it what
// can be had again. Volumes never go by default, nor do containers that ran: what
// they wrote is nowhere else.
func DefaultRules() []Rule {
	return []Rule{
		{Name: "leaked networks", Kinds: []Kind{Networks}, KeepFor: time.Hour}, // after a container named it last
		{Name: "images without a name", Kinds: []Kind{Images}, Dangling: true, Pressure: true},
		{Name: "build cache", Kinds: []Kind{BuildCache}, KeepFor: 48 * time.Hour, Pressure: true},
		{Name: "containers that never started", Kinds: []Kind{Created}, KeepFor: 24 * time.Hour, Pressure: true},
		{Name: "images", Kinds: []Kind{Images}, Pressure: true},
	}
}

// rules are those that count.
func (c Config) rules() []Rule {
	if len(c.Rules) == 0 {
		return DefaultRules()
	}
	return c.Rules
}

// maxRules and maxPatterns bound what a configuration may ask for.
const (
	maxRules    = 100
	maxPatterns = 1000
)

// Validate checks values and what belongs together. The error begins with the
// key below gc.
func (c Config) Validate() error {
	if c.Every < time.Second {
		return fmt.Errorf("every: %v is under a second", c.Every)
	}
	if c.MinAge < 0 || c.KeepNewest < 0 {
		return fmt.Errorf("min_age %v and keep_newest %d have to be 0 or more", c.MinAge, c.KeepNewest)
	}
	for name, mark := range map[string]Amount{"high": c.High, "low": c.Low, "critical": c.Critical} {
		if mark.IsZero() || mark.Bytes < 0 {
			return fmt.Errorf("%s: it has to be over 0", name)
		}
	}
	if !ordered(c.Low, c.High) || !ordered(c.High, c.Critical) {
		return fmt.Errorf("low: the marks have to grow: low %v, high %v, critical %v", c.Low, c.High, c.Critical)
	}
	if len(c.Rules) > maxRules || len(c.Keep) > maxPatterns {
		return fmt.Errorf("rules: at most %d rules, and %d patterns to keep", maxRules, maxPatterns)
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

// ordered reports whether a is below b, where that can be told before the disk
// is known.
func ordered(a, b Amount) bool {
	if (a.Percent > 0) != (b.Percent > 0) {
		return true
	}
	return a.Percent+float64(a.Bytes) < b.Percent+float64(b.Bytes)
}

func (r Rule) validate() error {
	if len(r.Kinds) == 0 {
		return fmt.Errorf("kinds: name at least one of %s", kindWords())
	}
	for _, k := range r.Kinds {
		if !slices.Contains(Kinds(), k) {
			return fmt.Errorf("kinds: %q is none of %s", k, kindWords())
		}
	}
	only := func(kinds ...Kind) bool {
		return !slices.ContainsFunc(r.Kinds, func(k Kind) bool { return !slices.Contains(kinds, k) })
	}
	switch {
	case r.KeepFor < 0:
		return fmt.Errorf("keep_for: %v is under 0", r.KeepFor)
	case len(r.Match) > maxPatterns || slices.Contains(r.Match, "") || slices.Contains(r.Labels, ""):
		return fmt.Errorf("match: an empty pattern or label, or more than %d", maxPatterns)
	case r.Dangling && !only(Images):
		return fmt.Errorf("dangling: only of images")
	case !r.Reserved.IsZero() && !only(Images, BuildCache):
		return fmt.Errorf("reserved: only of images and build cache, whose sizes are known")
	case !r.MaxUsed.IsZero() && !only(Images):
		return fmt.Errorf("max_used: only of images, whose sizes are known")
	case r.MinFreeInodes.Bytes > 1<<40:
		return fmt.Errorf("min_free_inodes: %d are too many", r.MinFreeInodes.Bytes)
	}
	return nil
}

func kindWords() string {
	var words []string
	for _, k := range Kinds() {
		words = append(words, string(k))
	}
	return strings.Join(words, ", ")
}

// name is what a rule is called in reasons.
func (r Rule) name(i int) string { return cmp.Or(r.Name, fmt.Sprintf("rule %d", i+1)) }

// limited reports whether the rule stops at something.
func (r Rule) limited() bool {
	return r.Pressure || !r.MaxUsed.IsZero() || !r.MinFree.IsZero() || !r.MinFreeInodes.IsZero()
}
