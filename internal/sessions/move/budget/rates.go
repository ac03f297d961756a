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

// Pace is how long something takes: Fixed whatever the size, and PerMB for every
// million bytes.
type Pace struct {
	Fixed time.Duration
	PerMB time.Duration
}

// bytes is the part that goes by the size.
func (p Pace) bytes(n int64) time.Duration { return time.Duration(float64(n) / 1e6 * float64(p.PerMB)) }

// Line is a pace that was learnt: the line of least squares through what was seen,
// of which what is older counts less. The zero value has seen nothing, and is no
// use: see FirstGuess. Its fields are sums over what was seen: x is millions of
// bytes, y seconds.
type Line struct {
	N  float64 `json:"n"`
	X  float64 `json:"x"`
	Y  float64 `json:"y"`
	XX float64 `json:"xx"`
	XY float64 `json:"xy"`
}

// fades is what all that was seen still counts beside one thing more.
const fades = 0.9

// guess has seen a pace with nothing, and with 200 MB.
func guess(p Pace) Line {
	const x = 200
	y0 := p.Fixed.Seconds()
	y := y0 + x*p.PerMB.Seconds()
	return Line{N: 2, X: x, Y: y0 + y, XX: x * x, XY: x * y}
}

// Learn takes in that so many bytes took so long, beside so many others that shared
// the machine with it (itself included, on average; at least 1): what it would have
// taken alone is less.
func (l *Line) Learn(bytes int64, took time.Duration, sharers float64) {
	x, y := float64(bytes)/1e6*max(1, sharers), took.Seconds()
	l.N, l.X, l.Y = l.N*fades+1, l.X*fades+x, l.Y*fades+y
	l.XX, l.XY = l.XX*fades+x*x, l.XY*fades+x*y
}

// Pace is the line's; neither of its parts is below 0.
func (l Line) Pace() Pace {
	spread := l.N*l.XX - l.X*l.X
	slope := 0.0
	if spread > 1e-9 {
		slope = (l.N*l.XY - l.X*l.Y) / spread
	}
	fixed := (l.Y - slope*l.X) / l.N
	switch {
	case slope <= 0: // what was seen differs by chance more than by size
		slope, fixed = 0, l.Y/l.N
	case fixed < 0 && l.XX > 0:
		slope, fixed = l.XY/l.XX, 0
	}
	return Pace{Fixed: time.Duration(fixed * 1e9), PerMB: time.Duration(slope * 1e9)}
}

// sound reports whether the line can have been learnt.
func (l Line) sound() bool {
	for _, v := range []float64{l.N, l.X, l.Y, l.XX, l.XY} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 || v > 1e15 {
			return false
		}
	}
	return l.N >= 1
}

// Rates are what is known of how fast a host saves, sends and restores.
type Rates struct {
	Save    Line `json:"save"`  // into memory
	Spill   Line `json:"spill"` // onto disk
	Send    Line `json:"send"`
	Restore Line `json:"restore"` // a start from an image, until the container runs
}

// FirstGuess is before anything was seen. Saving and restoring are as they were
// measured on two shared cores with 260 MB (docs/moving.md), sending is a network
// of 1 Gbit/s.
func FirstGuess() Rates {
	return Rates{
		Save:    guess(Pace{300 * time.Millisecond, 14 * time.Millisecond}),
		Spill:   guess(Pace{400 * time.Millisecond, 25 * time.Millisecond}),
		Send:    guess(Pace{50 * time.Millisecond, 10 * time.Millisecond}),
		Restore: guess(Pace{250 * time.Millisecond, 12 * time.Millisecond}),
	}
}

// Load reads what Store wrote. A file that is not there is no error; with one that
// cannot be used there is an error, and the first guess all the same.
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
		err = errors.New("it has no rates")
	}
	if err != nil {
		return FirstGuess(), fmt.Errorf("read how fast sessions are saved: %s: %w", path, err)
	}
	return r, nil
}

// Store writes the rates to path, whole or not at all.
func (r Rates) Store(path string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("keep how fast sessions are saved: %w", err)
	}
	if err := atomicfile.WriteNoSync(path, text, 0o600); err != nil {
		return fmt.Errorf("keep how fast sessions are saved: %w", err)
	}
	return nil
}
