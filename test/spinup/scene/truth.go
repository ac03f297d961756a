package scene

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"time"

	"holdfast/test/lab/registry"
)

// Span is a range of time.
type Span struct{ From, To time.Time }

// Covered returns the time that at least one of the spans covers.
func Covered(spans []Span) time.Duration {
	spans = slices.SortedFunc(slices.Values(spans), func(a, b Span) int { return cmp.Compare(a.From.UnixNano(), b.From.UnixNano()) })
	var all time.Duration
	var end time.Time
	for _, s := range spans {
		if s.From.Before(end) {
			s.From = end
		}
		if s.To.After(s.From) {
			all += s.To.Sub(s.From)
			end = s.To
		}
	}
	return all
}

// Passing returns the spans in which the proxy passed layers of the given sizes.
func Passing(passed []registry.Passed, sizes map[string]int64) []Span {
	var out []Span
	for _, p := range passed {
		if sizes[p.Blob] > 0 {
			out = append(out, Span{p.First, p.Last})
		}
	}
	return out
}

// The log messages of the daemon before and after it extracts a layer: the driver's
// (overlay2 ApplyDiff) and the layer store's (applyTar).
var logged = regexp.MustCompile(`time="([^"]+)" level=debug msg="(Applying tar in|Applied tar)`)

// The message of containerd when it has extracted a layer, and how long that took
// (containerd, core/diff/apply/apply.go).
var diffApplied = regexp.MustCompile(`time="([^"]+)" level=debug msg="diff applied" d=(\S+)`)

// Applied returns the extractions in a daemon's debug log since begun, of Docker's own
// store or of its containerd.
func Applied(path string, begun time.Time) ([]Span, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Span
	var from time.Time
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if m := diffApplied.FindStringSubmatch(lines.Text()); m != nil {
			at, terr := time.Parse(time.RFC3339Nano, m[1])
			took, derr := time.ParseDuration(m[2])
			if err := errors.Join(terr, derr); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			if !at.Before(begun) {
				out = append(out, Span{at.Add(-took), at})
			}
			continue
		}
		m := logged.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		switch {
		case at.Before(begun):
		case m[2] == "Applying tar in":
			from = at
		default:
			out = append(out, Span{from, at})
		}
	}
	return out, lines.Err()
}

// Truth has the times of a pull: of its download by the proxy, and of its extraction by
// the engine's debug log.
type Truth struct{ Download, Extract []Span }

// truthFile is a Truth on disk, in milliseconds since the pull was requested.
type truthFile struct {
	Download [][2]float64 `json:"download_ms"`
	Extract  [][2]float64 `json:"extract_ms"`
}

// Write writes the truth of a pull that was requested at begun.
func (t Truth) Write(w io.Writer, begun time.Time) error {
	millis := func(spans []Span) [][2]float64 {
		since := func(t time.Time) float64 { return math.Round(float64(t.Sub(begun))/1e3) / 1e3 }
		out := [][2]float64{}
		for _, s := range spans {
			out = append(out, [2]float64{since(s.From), since(s.To)})
		}
		return out
	}
	return json.NewEncoder(w).Encode(truthFile{millis(t.Download), millis(t.Extract)})
}

// ReadTruth reads a written Truth. Its times count from begun.
func ReadTruth(r io.Reader, begun time.Time) (Truth, error) {
	var f truthFile
	if err := json.NewDecoder(r).Decode(&f); err != nil {
		return Truth{}, err
	}
	spans := func(list [][2]float64) []Span {
		var out []Span
		for _, s := range list {
			out = append(out, Span{begun.Add(time.Duration(s[0] * 1e6)), begun.Add(time.Duration(s[1] * 1e6))})
		}
		return out
	}
	return Truth{spans(f.Download), spans(f.Extract)}, nil
}
