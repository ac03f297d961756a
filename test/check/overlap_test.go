package check

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// write creates the tick file of a container that lived between two times.
func write(t *testing.T, dir, name, key string, epoch int, from, to time.Duration) {
	t.Helper()
	var b strings.Builder
	for at := from; at <= to; at += 20 * time.Millisecond {
		fmt.Fprintf(&b, "%s %d %d\n", key, epoch, at)
	}
	b.WriteString(key + " ") // an incomplete line after a kill
	if err := os.WriteFile(filepath.Join(dir, name+TickSuffix), []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

func look(t *testing.T, dir string) (Alive, error) {
	t.Helper()
	lives, err := ReadLives(dir)
	if err != nil {
		t.Fatal(err)
	}
	return Overlap(lives)
}

func TestLivesOneAfterTheOther(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a1", "a", 5, time.Second, 2*time.Second)
	write(t, dir, "a2", "a", 9, 2*time.Second+time.Millisecond, 3*time.Second)
	write(t, dir, "b", "b", 7, time.Second, 9*time.Second)
	if err := os.WriteFile(filepath.Join(dir, "mute"+TickSuffix), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	seen, err := look(t, dir)
	if err != nil || seen.Keys != 2 || seen.Lives != 3 || seen.Ticks != 51+50+401 {
		t.Errorf("%+v, %v", seen, err)
	}
}

func TestLivesThatMustNotBe(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, dir string)
		want []string
	}{
		"at the same time": {func(t *testing.T, dir string) {
			write(t, dir, "1", "a", 5, time.Second, 2*time.Second)
			write(t, dir, "2", "a", 9, 1800*time.Millisecond, 3*time.Second)
		}, []string{"a epoch 5", "a epoch 9", "overlap by 200ms"}},
		"in the wrong order": {func(t *testing.T, dir string) {
			write(t, dir, "1", "a", 9, time.Second, 2*time.Second)
			write(t, dir, "2", "a", 5, 3*time.Second, 4*time.Second)
		}, []string{"a epoch 5", "a epoch 9", "overlap by"}},
		"one epoch twice": {func(t *testing.T, dir string) {
			write(t, dir, "1", "a", 5, time.Second, 2*time.Second)
			write(t, dir, "2", "a", 5, 3*time.Second, 4*time.Second)
		}, []string{"share an epoch"}},
		"around another": {func(t *testing.T, dir string) {
			write(t, dir, "1", "a", 5, time.Second, 9*time.Second)
			write(t, dir, "2", "a", 6, 10*time.Second, 11*time.Second)
			write(t, dir, "3", "a", 4, time.Second, 10500*time.Millisecond)
		}, []string{"2 overlaps", "a epoch 4", "overlap by 500ms"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c.make(t, dir)
			_, err := look(t, dir)
			var two *OverlapError
			if !errors.As(err, &two) || len(two.Pairs) == 0 {
				t.Fatalf("not caught: %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in: %v", w, err)
				}
			}
		})
	}
}

func TestNothingIsNoProof(t *testing.T) {
	if _, err := look(t, t.TempDir()); !errors.Is(err, ErrNothing) {
		t.Errorf("no ticks: %v", err)
	}
	if _, err := History([]Op{{Client: "a", Kind: Read, Key: "k", Result: None, Return: 1}}, time.Minute); !errors.Is(err, ErrNothing) {
		t.Errorf("no claims: %v", err)
	}
}

func TestTicksThatAreNone(t *testing.T) {
	for _, text := range []string{"a 1\n", "A 1 2\n", "a x 2\n", "a 1 x\n", "a 1 5\na 1 4\n", "a 1 5\na 2 6\n"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "x"+TickSuffix), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if lives, err := ReadLives(dir); err == nil {
			t.Errorf("%q is taken for %v", text, lives)
		}
	}
}
