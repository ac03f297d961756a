// Package schedule carries out cures from the configuration: at an interval, in a window
// of the day, or while a finding stands. It runs one cure at a time, never under memory or
// disk pressure, and compares the host's figures before and after. A cure after which the
// host is worse is not run again until an operator allows it, or its configuration
// changes.
package schedule

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"

	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/probe"
)

// Entry is a scheduled cure as it is configured.
type Entry struct {
	Cure string `yaml:"cure"` // one of Names
	When string `yaml:"when"` // finding (default): only while a finding stands that the cure is for; or always
	// Every is the minimum time between two runs, default DefaultEvery.
	Every time.Duration `yaml:"every"`
	// Window is the part of the day in which a run may begin, in the local time of the
	// agent, such as 22:00-05:30. Default: the whole day.
	Window string        `yaml:"window"`
	Bytes  string        `yaml:"bytes"`   // at most in one run, default cure.DefaultBytes
	For    time.Duration `yaml:"for"`     // at most in one run, default cure.DefaultFor
	DryRun bool          `yaml:"dry_run"` // only determine what the cure would do
}

// Values of Entry.When.
const (
	WhenFinding = "finding"
	WhenAlways  = "always"
)

// The interval of a scheduled cure, and its bounds.
const (
	DefaultEvery = 6 * time.Hour
	MinEvery     = time.Hour
	MaxEvery     = 31 * 24 * time.Hour
)

// kind is a cure that may be repeated without an operator: what it frees, the host builds
// up again by itself.
type kind struct {
	name  string
	rules []string // the rules whose findings it is for
	cures func(h probe.Host) ([]cure.Cure, error)
}

func kinds() []kind {
	one := func(c cure.Cure) func(probe.Host) ([]cure.Cure, error) {
		return func(probe.Host) ([]cure.Cure, error) { return []cure.Cure{c}, nil }
	}
	return []kind{
		{"memcg", []string{"dying-cgroups"}, one(cure.Memcg(""))},
		{"kubepods", []string{"dying-cgroups"}, func(h probe.Host) ([]cure.Cure, error) {
			groups, err := cure.Kubepods(h)
			all := make([]cure.Cure, 0, len(groups))
			for _, g := range groups {
				all = append(all, cure.Memcg(g))
			}
			return all, err
		}},
		{"pinned", []string{"dying-cgroups", "pinned-cgroups"}, one(cure.Pinned())},
		{"drop-slab", []string{"dying-cgroups", "negative-dentries"}, one(cure.DropSlab())},
	}
}

// Names returns the cures that may be scheduled.
func Names() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

// Validate checks entries. The error begins with the key.
func Validate(entries []Entry) error {
	seen := make(map[string]bool)
	for i, e := range entries {
		err := e.validate()
		if err == nil && seen[e.Cure] {
			err = fmt.Errorf("cure: %q is scheduled twice", e.Cure)
		}
		if err != nil {
			return fmt.Errorf("cures[%d].%w", i, err)
		}
		seen[e.Cure] = true
	}
	return nil
}

func (e Entry) validate() error {
	if !slices.Contains(Names(), e.Cure) {
		return fmt.Errorf("cure: %q cannot be scheduled; it must be one of %s", e.Cure, strings.Join(Names(), ", "))
	}
	e = e.filled()
	if e.When != WhenFinding && e.When != WhenAlways {
		return fmt.Errorf("when: %q is neither %s nor %s", e.When, WhenFinding, WhenAlways)
	}
	if e.Every < MinEvery || e.Every > MaxEvery {
		return fmt.Errorf("every: %v must be from %v to %v", e.Every, MinEvery, MaxEvery)
	}
	if _, err := parseWindow(e.Window); err != nil {
		return fmt.Errorf("window: %w", err)
	}
	if n, err := units.RAMInBytes(e.Bytes); err != nil || n < 1<<20 || n > cure.MaxBytes {
		return fmt.Errorf("bytes: %q must be a size from 1MiB to 1TiB", e.Bytes)
	}
	if e.For < time.Second || e.For > cure.MaxFor {
		return fmt.Errorf("for: %v must be from 1s to %v", e.For, cure.MaxFor)
	}
	return nil
}

// filled returns the entry with the defaults of what is not given.
func (e Entry) filled() Entry {
	e.When, e.Every = cmp.Or(e.When, WhenFinding), cmp.Or(e.Every, DefaultEvery)
	e.Bytes, e.For = cmp.Or(e.Bytes, "1GiB"), cmp.Or(e.For, cure.DefaultFor)
	return e
}

// kind returns the kind of a valid entry.
func (e Entry) kind() kind {
	all := kinds()
	return all[slices.IndexFunc(all, func(k kind) bool { return k.name == e.Cure })]
}

// options returns the bounds of one run of a valid entry.
func (e Entry) options() cure.Options {
	n, _ := units.RAMInBytes(e.Bytes) // validate has checked it
	return cure.Options{Apply: !e.DryRun, Bytes: n, For: e.For, Scheduled: true}
}

// Plan determines what the entry's cure would do now, and changes nothing. A cure that has
// nothing to do is a cure.ErrNothing.
func (e Entry) Plan(ctx context.Context, h probe.Host) ([]cure.Report, error) {
	e = e.filled()
	e.DryRun = true
	return e.run(func(c cure.Cure, o cure.Options) (cure.Report, error) { return c.Run(ctx, cure.Env{Host: h}, o) }, h)
}

func (e Entry) run(run func(cure.Cure, cure.Options) (cure.Report, error), h probe.Host) ([]cure.Report, error) {
	cures, err := e.kind().cures(h)
	if err != nil {
		return nil, err
	}
	return e.runAll(cures, run)
}

// runAll carries cures out, together within the entry's bounds.
func (e Entry) runAll(cures []cure.Cure, run func(cure.Cure, cure.Options) (cure.Report, error)) ([]cure.Report, error) {
	o, began := e.options(), time.Now()
	var reports []cure.Report
	for _, c := range cures {
		r, err := run(c, o)
		if err == nil || r.Applied {
			reports = append(reports, r)
		}
		if err != nil || r.Harm != "" {
			return reports, err
		}
		o.Bytes -= r.Plan.Bytes
		if o.For = e.For - time.Since(began); o.Bytes < 1<<20 || o.For < time.Second {
			break
		}
	}
	return reports, nil
}

// window is a part of the day in minutes since midnight; from is greater than to if it
// contains midnight. The zero value is the whole day.
type window struct{ from, to int }

func parseWindow(text string) (w window, err error) {
	if text == "" {
		return w, nil
	}
	from, to, _ := strings.Cut(text, "-")
	begin, err1 := time.Parse("15:04", from)
	end, err2 := time.Parse("15:04", to)
	if err1 != nil || err2 != nil {
		return w, fmt.Errorf("%q is not a part of the day such as 22:00-05:30", text)
	}
	w = window{begin.Hour()*60 + begin.Minute(), end.Hour()*60 + end.Minute()}
	if w.from == w.to {
		return w, fmt.Errorf("%q begins when it ends", text)
	}
	return w, nil
}

func (w window) contains(t time.Time) bool {
	m := t.Hour()*60 + t.Minute()
	switch {
	case w.from < w.to:
		return m >= w.from && m < w.to
	case w.from > w.to:
		return m >= w.from || m < w.to
	}
	return true
}
