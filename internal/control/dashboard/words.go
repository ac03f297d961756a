package dashboard

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"holdfast"
)

// figure is a number that is also a metric: it has the metric's name and labels in the
// syntax of Prometheus, and the exact value. A test compares the pages with /metrics.
type figure struct {
	Metric string
	Value  string
	Text   string // formatted for the page
}

func count(metric string, n int) figure {
	return figure{metric, strconv.Itoa(n), thousands(n)}
}

// pick returns the first text if the condition is true, otherwise the second.
func pick(condition bool, yes, no string) string {
	if condition {
		return yes
	}
	return no
}

// link returns a path of this server with parameters in pairs of names and values.
func link(path string, pairs ...string) string {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	return (&url.URL{Path: path, RawQuery: v.Encode()}).String()
}

// thousands puts a narrow no-break space between groups of three digits.
func thousands[T int | int64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// number returns a figure with its text.
func number(metric string, v float64, text string) figure {
	return figure{metric, strconv.FormatFloat(v, 'g', -1, 64), text}
}

func percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }

// share formats a share of 0 to 1, with as many digits as are significant.
func share(v float64) string {
	switch p := 100 * v; {
	case p > 0 && p < .1:
		return "< 0.1 %"
	case p > 0 && p < 10:
		return fmt.Sprintf("%.1f %%", p)
	default:
		return fmt.Sprintf("%.0f %%", p)
	}
}

// whole formats a whole number.
func whole(v float64) string { return thousands(int(v)) }

// duration formats a time in seconds, in a suitable unit.
func duration(v float64) string {
	switch {
	case v <= 0:
		return "0 s"
	case v < .00005:
		return "< 0.1 ms"
	case v < .01:
		return fmt.Sprintf("%.1f ms", 1000*v)
	case v < 1:
		return fmt.Sprintf("%.0f ms", 1000*v)
	case v < 10:
		return fmt.Sprintf("%.1f s", v)
	case v < 600:
		return fmt.Sprintf("%.0f s", v)
	case v < 2*3600:
		return fmt.Sprintf("%.0f min", v/60)
	}
	return fmt.Sprintf("%.0f h", v/3600)
}

// took formats a duration.
func took(d holdfast.Millis) string { return duration(time.Duration(d).Seconds()) }

// size formats a number of bytes in a suitable unit.
func size(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), 0
	for v >= 1024 && unit < 4 {
		v, unit = v/1024, unit+1
	}
	return fmt.Sprintf("%.1f %s", v, []string{"B", "KiB", "MiB", "GiB", "TiB"}[unit])
}

// age formats the time since an event, in a coarse unit, so that most rows stay the
// same from one round to the next.
func age(now, then time.Time) string {
	d := now.Sub(then)
	switch {
	case then.IsZero():
		return "–"
	case d < 0:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d d", int(d.Hours()/24))
}

// stamp formats a time for programs; the zero time is "".
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// when formats a time for people.
func when(t time.Time) string { return t.UTC().Format("2 Jan 15:04:05") }

func of(n, most int) string {
	if most == 0 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d of %d", n, most)
}

// condition is a node's state in one word, for colours and for the search.
type condition string

const (
	nodeUp       condition = "up"
	nodeCordoned condition = "cordoned" // refuses new sessions
	nodeDraining condition = "draining" // and hands over those it has
	nodeDegraded condition = "degraded"
	nodeTrouble  condition = "trouble"
)

// conditions lists the conditions, the most urgent first.
func conditions() []condition {
	return []condition{nodeTrouble, nodeDegraded, nodeDraining, nodeCordoned, nodeUp}
}

// states lists the states of a session, in their order.
func states() []holdfast.State {
	return []holdfast.State{holdfast.Claimed, holdfast.Starting, holdfast.Ready, holdfast.Leaving, holdfast.IsSuspended}
}

// conditionOf returns the most urgent condition. leaving is how many of the node's
// sessions leave.
func conditionOf(n holdfast.Node, leaving int) condition {
	switch {
	case n.Trouble != "":
		return nodeTrouble
	case n.Draining && leaving > 0:
		return nodeDraining
	case n.Draining:
		return nodeCordoned
	case n.Degraded != "":
		return nodeDegraded
	}
	return nodeUp
}

// rank puts the most urgent condition first.
func (c condition) rank() int { return slices.Index(conditions(), c) }
