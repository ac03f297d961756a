package mcp

import (
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"holdfast"
)

// Bounds of texts in results, in bytes.
const (
	maxName  = 200
	maxError = 600
	maxLog   = 2000
)

// visible replaces control characters and invisible ones, except line breaks and tabs,
// and makes text valid UTF-8: a result shows all of what it contains, and nothing
// controls the terminal of the program that prints it.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\r':
			return -1
		case r == '\n' || r == '\t' || unicode.IsPrint(r):
			return r
		}
		return utf8.RuneError
	}, s)
}

// clip returns text on one line, and at most n bytes of it.
func clip(s string, n int) string {
	s = strings.Join(strings.Fields(visible(s)), " ")
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// lastBytes returns at most the last n bytes of a text, and the number before them.
func lastBytes(s string, n int) (text string, cut int) {
	if len(s) > n {
		s, cut = s[len(s)-n:], len(s)-n
	}
	return visible(strings.ToValidUTF8(s, "\uFFFD")), cut
}

// millis returns a duration as a number of milliseconds.
func millis(d holdfast.Millis) float64 { return math.Round(float64(d)/1e3) / 1e3 }

// stamp returns a time to the second, "" for the zero time.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// rounded returns a figure with four decimals.
func rounded(f float64) float64 { return math.Round(f*1e4) / 1e4 }

// first returns at most the first n elements, and the number of the others.
func first[T any](list []T, n int) (some []T, omitted int) {
	n = min(n, len(list))
	return list[:n], len(list) - n
}
