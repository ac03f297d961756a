package budget

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"time"

	"holdfast/internal/platform/atomicfile"
)

// Pace is the duration of an operation: Fixed for any size, and PerMB in addition for
// every million bytes.
type Pace struct {
	Fixed time.Duration
	PerMB time.Duration
}

// bytes returns the part of the duration that depends on the size.
func (p Pace) bytes(n int64) time.Duration { return time.Duration(float64(n) / 1e6 * float64(p.PerMB)) }

// Line is a learned pace: the line of least squares through the observations, of which
// older ones count less. Its fields are weighted sums over the observations: x is millions
// of bytes, y is seconds. The zero value has no observation and no pace; FirstGuess
// returns usable values.
type Line struct {
	N  float64 `json:"n"`
	X  float64 `json:"x"`
	Y  float64 `json:"y"`
	XX float64 `json:"xx"`
	XY float64 `json:"xy"`
}

// fades is the factor by which earlier observations count less after each new one.
const fades = 0.9

// guess returns the line through two observations of a pace: 0 and 200 MB.
func guess(p Pace) Line {
	const x = 200
	y0 := p.Fixed.Seconds()
	y := y0 + x*p.PerMB.Seconds()
	return Line{N: 2, X: x, Y: y0 + y, XX: x * x, XY: x * y}
}

// Learn adds the observation that an operation on bytes took the time took. sharers is the
// average number of concurrent operations, this one included, at least 1. Alone, the
// operation would have taken less time.
func (l *Line) Learn(bytes int64, took time.Duration, sharers float64) {
	x, y := float64(bytes)/1e6*max(1, sharers), took.Seconds()
	l.N, l.X, l.Y = l.N*fades+1, l.X*fades+x, l.Y*fades+y
	l.XX, l.XY = l.XX*fades+x*x, l.XY*fades+x*y
}

// Pace returns the pace of the line. Neither of its parts is below 0.
func (l Line) Pace() Pace {
	spread := l.N*l.XX - l.X*l.X
	slope := 0.0
	if spread > 1e-9 {
		slope = (l.N*l.XY - l.X*l.Y) / spread
	}
	fixed := (l.Y - slope*l.X) / l.N
	switch {
	case slope <= 0: // the observations differ more by chance than by size
		slope, fixed = 0, l.Y/l.N
	case fixed < 0 && l.XX > 0:
		slope, fixed = l.XY/l.XX, 0
	}
	return Pace{Fixed: time.Duration(fixed * 1e9), PerMB: time.Duration(slope * 1e9)}
}

// sound reports whether the line can be the result of Learn.
func (l Line) sound() bool {
	for _, v := range []float64{l.N, l.X, l.Y, l.XX, l.XY} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 || v > 1e15 {
			return false
		}
	}
	return l.N >= 1
}

// Rates are the learned paces of a host for saving, sending and restoring.
type Rates struct {
	Save    Line `json:"save"`  // into memory
	Spill   Line `json:"spill"` // onto disk
	Send    Line `json:"send"`
	Restore Line `json:"restore"` // a start from an image, until the container runs
}

// FirstGuess returns the rates before the first observation. Saving and restoring were
// measured with 260 MB on two shared cores (docs/moving.md). Sending assumes a network of
// 1 Gbit/s.
func FirstGuess() Rates {
	return Rates{
		Save:    guess(Pace{300 * time.Millisecond, 14 * time.Millisecond}),
		Spill:   guess(Pace{400 * time.Millisecond, 25 * time.Millisecond}),
		Send:    guess(Pace{50 * time.Millisecond, 10 * time.Millisecond}),
		Restore: guess(Pace{250 * time.Millisecond, 12 * time.Millisecond}),
	}
}

// Load reads the rates that Store wrote. If the file does not exist, it returns the first
// guess. If the file cannot be used, it returns the first guess and an error.
func Load(path string) (Rates, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return FirstGuess(), nil
	}
	r := Rates{}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && !(r.Save.sound() && r.Spill.sound() && r.Send.sound() && r.Restore.sound()) {
		err = errors.New("it has no valid rates")
	}
	if err != nil {
		return FirstGuess(), fmt.Errorf("reading the rates of saving sessions: %s: %w", path, err)
	}
	return r, nil
}

// Store writes the rates to path atomically.
func (r Rates) Store(path string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("storing the rates of saving sessions: %w", err)
	}
	if err := atomicfile.WriteNoSync(path, text, 0o600); err != nil {
		return fmt.Errorf("storing the rates of saving sessions: %w", err)
	}
	return nil
}
