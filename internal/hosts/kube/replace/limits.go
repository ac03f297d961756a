package replace

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/ranking"
)

// Limits select nodes that exceed them: figures by name.
type Limits map[string]float64

// Names of limits that are not facts of the doctor.
const (
	LimitAge  = "age"         // seconds since the node came to the cluster
	LimitSlow = "spinup.slow" // share of spin-ups with a slow phase
	LimitP50  = "spinup.p50"  // s
	LimitP99  = "spinup.p99"  // s
)

// ParseLimits reads limits of the form NAME=VALUE: a fact's name and a number, a share
// in percent, or a time such as 30m or 60d.
func ParseLimits(words []string) (Limits, error) {
	l := make(Limits)
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is not NAME=VALUE", w)
		}
		v, err := parseFigure(name, value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		l[name] = v
	}
	return l, nil
}

func parseFigure(name, value string) (float64, error) {
	v, err := strconv.ParseFloat(value, 64)
	if number, ok := strings.CutSuffix(value, "%"); ok {
		v, err = strconv.ParseFloat(number, 64)
		v /= 100
	} else if days, ok := strings.CutSuffix(value, "d"); ok {
		v, err = strconv.ParseFloat(days, 64)
		v *= (24 * time.Hour).Seconds()
	} else if d, e := time.ParseDuration(value); e == nil && err != nil {
		v, err = d.Seconds(), nil
		if strings.HasPrefix(name, "reclaim.") || strings.HasPrefix(name, "disk.") || strings.HasPrefix(name, "alloc.") {
			v *= 1000 // these facts count milliseconds
		}
	}
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return 0, fmt.Errorf("%q is not a number, a percentage or a duration: use a number, 5%%, 30m or 60d", value)
	}
	return v, nil
}

// Over returns the figures of a node that exceed the limits, as text; empty:
// none. An unknown figure exceeds no limit.
func (l Limits) Over(age time.Duration, r *ranking.Record) []string {
	var over []string
	for _, name := range slices.Sorted(maps.Keys(l)) {
		have, ok := figure(name, age, r)
		if ok && have > l[name] {
			over = append(over, fmt.Sprintf("%s %s > %s", name, show(name, have), show(name, l[name])))
		}
	}
	return over
}

func figure(name string, age time.Duration, r *ranking.Record) (float64, bool) {
	if name == LimitAge {
		return age.Seconds(), true
	}
	if r == nil {
		return 0, false
	}
	switch name {
	case LimitSlow:
		if r.Spinups.Count == 0 {
			return 0, false
		}
		return float64(r.Spinups.Slow) / float64(r.Spinups.Count), true
	case LimitP50:
		return r.Spinups.P50, r.Spinups.Count > 0
	case LimitP99:
		return r.Spinups.P99, r.Spinups.Count > 0
	}
	v, ok := r.Facts[name]
	return v, ok
}

func show(name string, v float64) string {
	switch name {
	case LimitAge:
		return (time.Duration(v) * time.Second).String()
	case LimitSlow:
		return fmt.Sprintf("%.1f %%", 100*v)
	case LimitP50, LimitP99:
		return fmt.Sprintf("%.2f s", v)
	}
	return strconv.FormatFloat(v, 'g', 6, 64)
}
