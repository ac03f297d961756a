package check

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast"
)

// TickSuffix is the suffix of the names of containers' files.
const TickSuffix = ".ticks" // as test/lab/echoserver names them

// Life is the life of one container, from the lines "KEY EPOCH NANOSECONDS" that it wrote
// while it was alive.
type Life struct {
	Key         holdfast.SessionKey
	Epoch       holdfast.Epoch
	File        string
	First, Last time.Duration // since the machine booted
	Ticks       int
}

func (l Life) String() string {
	return fmt.Sprintf("%s epoch %d alive from %.3fs to %.3fs (%d ticks, %s)",
		l.Key, l.Epoch, l.First.Seconds(), l.Last.Seconds(), l.Ticks, filepath.Base(l.File))
}

// ReadLives reads every file of dir whose name ends with TickSuffix; each belongs to one
// container. It skips empty files, because their containers were killed before the first
// tick.
func ReadLives(dir string) ([]Life, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"+TickSuffix))
	if err != nil {
		return nil, err
	}
	var lives []Life
	for _, f := range files {
		l, err := readLife(f)
		if err != nil {
			return nil, fmt.Errorf("ticks %s: %w", f, err)
		}
		if l.Ticks > 0 {
			lives = append(lives, l)
		}
	}
	return lives, nil
}

func readLife(file string) (Life, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Life{}, err
	}
	l := Life{File: file}
	// A kill cut off the text after the last newline.
	end := bytes.LastIndexByte(text, '\n') + 1
	for line := range strings.Lines(string(text[:end])) {
		if err := l.add(strings.TrimSuffix(line, "\n")); err != nil {
			return Life{}, fmt.Errorf("line %d: %w", l.Ticks+1, err)
		}
	}
	return l, nil
}

func (l *Life) add(line string) error {
	fields := strings.Split(line, " ")
	if len(fields) != 3 {
		return fmt.Errorf("%q is no tick", line)
	}
	key, err := holdfast.ParseSessionKey(fields[0])
	if err != nil {
		return err
	}
	epoch, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return err
	}
	at, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil {
		return err
	}
	now := Life{Key: key, Epoch: holdfast.Epoch(epoch), File: l.File, First: time.Duration(at)}
	if l.Ticks == 0 {
		*l = now
	}
	if now.Key != l.Key || now.Epoch != l.Epoch || now.First < l.Last {
		return fmt.Errorf("%q does not follow what %s", line, l)
	}
	l.Last = now.First
	l.Ticks++
	return nil
}

// Alive counts what Overlap has checked.
type Alive struct {
	Keys  int `json:"keys"`
	Lives int `json:"lives"`
	Ticks int `json:"ticks"`
}

func (a Alive) String() string {
	return fmt.Sprintf("%d lives of %d keys, %d ticks", a.Lives, a.Keys, a.Ticks)
}

// Pair is a pair of lives that violate the rule.
type Pair struct {
	Old, New Life
	By       time.Duration // common time of both; 0 if they share an epoch one after the other
}

func (p Pair) String() string {
	why := fmt.Sprintf("overlap by %v", p.By.Round(time.Millisecond))
	if p.Old.Epoch == p.New.Epoch {
		why = "share an epoch"
	}
	return fmt.Sprintf("%s, and %s: they %s", p.Old, p.New, why)
}

// OverlapError has the sessions that ran twice.
type OverlapError struct {
	Seen  Alive
	Pairs []Pair // by key and epoch
}

// evidenceShown limits the text of an error, not its content.
const evidenceShown = 5

func (e *OverlapError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d overlaps in %s", len(e.Pairs), e.Seen)
	for _, p := range e.Pairs[:min(evidenceShown, len(e.Pairs))] {
		fmt.Fprintf(&b, "\n  %s", p)
	}
	return b.String()
}

// Overlap proves that no two epochs of a key were alive at the same time: in the order of
// epochs, each life ends before the next begins. An epoch belongs to one container, so two
// lives of one epoch are always an overlap. The error is ErrNothing or an *OverlapError.
//
// A container counts as alive from its first tick to its last. Overlap does not see the
// time after the last tick.
func Overlap(lives []Life) (Alive, error) {
	byKey := map[holdfast.SessionKey][]Life{}
	seen := Alive{Lives: len(lives)}
	for _, l := range lives {
		byKey[l.Key] = append(byKey[l.Key], l)
		seen.Ticks += l.Ticks
	}
	seen.Keys = len(byKey)
	if seen.Ticks == 0 {
		return seen, fmt.Errorf("overlap: %w", ErrNothing)
	}
	var pairs []Pair
	for _, of := range byKey {
		pairs = append(pairs, overlaps(of)...)
	}
	if len(pairs) == 0 {
		return seen, nil
	}
	slices.SortFunc(pairs, func(a, b Pair) int {
		return cmp.Or(cmp.Compare(a.New.Key, b.New.Key), cmp.Compare(a.New.Epoch, b.New.Epoch))
	})
	return seen, &OverlapError{Seen: seen, Pairs: pairs}
}

// overlaps compares each life of a key with the earlier life that ended last.
func overlaps(of []Life) []Pair {
	slices.SortFunc(of, func(a, b Life) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.First, b.First))
	})
	var pairs []Pair
	longest := of[0]
	for i, l := range of[1:] {
		switch before := of[i]; {
		case before.Epoch == l.Epoch:
			pairs = append(pairs, Pair{before, l, max(0, min(before.Last, l.Last)-l.First)})
		case l.First <= longest.Last:
			pairs = append(pairs, Pair{longest, l, longest.Last - l.First})
		}
		if l.Last > longest.Last {
			longest = l
		}
	}
	return pairs
}
