package move

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/bench"
)

// The sum of the parts is the whole move.
func TestPartsAreTheWhole(t *testing.T) {
	notice := time.Now()
	at := func(ms int) time.Time { return notice.Add(time.Duration(ms) * time.Millisecond) }
	ms := func(n int) holdfast.Millis { return holdfast.Millis(time.Duration(n) * time.Millisecond) }
	r := holdfast.DrainReport{Steps: []holdfast.Step{{Name: "prepare", Took: ms(10)}, {Name: "mark terminating", Took: ms(2)}, {Name: "kill", Took: ms(1)}, {Name: "save", Took: ms(85)}}}
	l := life{gone: at(100), claimed: at(103), ready: at(503), owner: holdfast.Owner{Boot: holdfast.Phases{Create: ms(20), Start: ms(300), Ready: ms(50)}}}
	s := timed(notice, r, 60*time.Millisecond, 20*time.Millisecond, l, at(510))
	want := [len(parts)]time.Duration{}
	for i, n := range []time.Duration{12, 60, 20, 8, 3, 20, 300, 80, 7} {
		want[i] = n * time.Millisecond
	}
	if s.parts != want {
		t.Errorf("%v, want %v", s.parts, want)
	}
}

// A counter with gaps is a failure. Lines that arrive twice are not.
func TestCounter(t *testing.T) {
	c := &terminal{}
	c.count("n 7")
	if c.last != 7 || c.gaps != 0 {
		t.Errorf("a client that came later is at %d, %d gaps", c.last, c.gaps)
	}
	c = &terminal{}
	for _, text := range []string{"ready", "n 1", "n 2", "n x", "n 1", "n 2", "n 3", "moved"} {
		c.count(text)
	}
	if c.last != 3 || c.gaps != 0 {
		t.Errorf("at %d, %d gaps", c.last, c.gaps)
	}
	c.count("n 6")
	if c.last != 6 || c.gaps != 2 {
		t.Errorf("at %d, %d gaps", c.last, c.gaps)
	}
}

func TestPage(t *testing.T) {
	f := findings{
		notice: 30 * time.Second, cold: []boot{{took: time.Second}}, awake: []boot{{took: 3 * time.Second / 2}}, small: []sample{{next: time.Second / 2, image: 1 << 20}}, large: []sample{{next: time.Second}},
		forks: &forks{children: 2, memory: ForkMemory{Children: SessionsMemory{Sessions: 2, Sandbox: bench.Memory{PSS: 4 << 20, RSS: 6 << 20}, Charged: 8 << 20}}},
		many:  &Many{Sessions: 3, WithMemory: 2, Said: "no room", next: []float64{1, 2}}, failures: []string{"session a: its memory is lost"},
	}
	r := f.result()
	if r.Score != 2 || r.Failed != 1 {
		t.Errorf("score %v, failed %d", r.Score, r.Failed)
	}
	path := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(path, []byte("before\n"+pageBegin+"the last one\n"+pageEnd+"after\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := WritePage(path, r); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"before\n", "after\n", "| **" + rowSmall + "** | 1 | 500 | 500 | 500 |", "Score 2.00, failed 1", "2 with their memory", "1.50 times that of a cold boot", "- the drain says: no room", "mean of 2: 4.0 MiB charged to its control group, PSS 2.0 MiB, RSS 3.0 MiB", "- session a: its memory is lost"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "the last one") {
		t.Error("the old table is still there")
	}
}

func TestOptions(t *testing.T) {
	good := Options{N: 1, Notice: time.Second, Runsc: "/bin/sh"}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Options){
		"moves":  func(o *Options) { o.N = 0 },
		"large":  func(o *Options) { o.Large = -1 },
		"once":   func(o *Options) { o.Many = 201 },
		"notice": func(o *Options) { o.Notice = 0 },
		"runsc":  func(o *Options) { o.Runsc = "/nowhere/runsc" },
	} {
		o := good
		change(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Run(t.Context(), Options{Runsc: "/nowhere/runsc"}); holdfast.HintOf(err) == "" {
		t.Errorf("no hint: %v", err)
	}
}

// Processes that share their memory count once.
func TestAddressSpaces(t *testing.T) {
	own := os.Getpid()
	if got := addressSpaces([]int{own, own, os.Getppid()}); len(got) != 2 || got[0] != own {
		t.Errorf("%v", got)
	}
}

// A new client whose first line is an earlier answer waits for the number after the first
// that it sees.
func TestCounterOfANewClient(t *testing.T) {
	c := &terminal{more: make(chan struct{})}
	add := func(text string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.lines = append(c.lines, line{text: text})
		c.count(text)
		close(c.more)
		c.more = make(chan struct{})
	}
	add("secret is a")
	done := make(chan error, 1)
	go func() { done <- c.counts(t.Context(), 0) }()
	add("n 7")
	for n := 8; ; n++ {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		case <-time.After(time.Millisecond):
			add(fmt.Sprintf("n %d", n))
		}
		if n > 5000 {
			t.Fatal("the client waits for another number")
		}
	}
}
