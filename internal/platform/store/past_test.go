package store

import (
	"errors"
	"testing"

	"holdfast"
)

// TestPastNotices: only an answer below what was seen before its call, another cluster,
// or what an earlier process has seen, shows a restore.
func TestPastNotices(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(*Past)
		want bool
	}{
		"the same revision": {func(p *Past) { p.Answered(p.Mark(), 1, 10, 0) }, false},
		"answers out of order": {func(p *Past) {
			early := p.Mark()
			p.Answered(p.Mark(), 1, 12, 0)
			p.Answered(early, 1, 11, 0)
		}, false},
		"an older revision":                      {func(p *Past) { p.Answered(p.Mark(), 1, 9, 0) }, true},
		"another cluster":                        {func(p *Past) { p.Answered(p.Mark(), 2, 99, 0) }, true},
		"an earlier process was behind":          {func(p *Past) { p.Remember(Seen{Cluster: 1, Revision: 9}) }, false},
		"an earlier process was ahead":           {func(p *Past) { p.Remember(Seen{Cluster: 1, Revision: 11}) }, true},
		"an earlier process saw another cluster": {func(p *Past) { p.Remember(Seen{Cluster: 2, Revision: 9}) }, true},
		"an earlier process waited":              {func(p *Past) { p.Remember(Seen{Cluster: 1, Revision: 9, Restored: true}) }, true},
	} {
		var p Past
		p.Answered(p.Mark(), 1, 10, 0)
		if c.do(&p); p.Seen().Restored != c.want {
			t.Errorf("%s: noticed %v", name, p.Seen().Restored)
		}
	}
}

// TestPastIsNoticedOnce: an answer of before a restore that comes late is not a second
// restore, and a second one is noticed while the first is handled.
func TestPastIsNoticedOnce(t *testing.T) {
	var p Past
	p.Answered(p.Mark(), 1, 10, 0)
	r, late := p.Begin(), p.Mark()
	p.Answered(p.Mark(), 1, 5, 0)
	first, again, _ := p.Turn(r)
	if !again {
		t.Error("the watch does not list again")
	}
	p.Answered(late, 1, 11, 0)
	p.Answered(p.Mark(), 1, 6, 0)
	p.Notice()
	if turn, _, _ := p.Turn(r); turn != first {
		t.Error("one restore is noticed twice")
	}
	if err := p.Resume(func() { t.Error("it resumes before the watch has listed") }); !errors.Is(err, ErrRestored) || !errors.Is(err, holdfast.ErrStore) {
		t.Errorf("got %v", err)
	}
	p.Listed(r, first)
	p.Answered(p.Mark(), 1, 3, 0)
	turn, again, changed := p.Turn(r)
	if !again || turn == first {
		t.Error("the second restore is not noticed")
	}
	p.Listed(r, turn)
	if err := p.Resume(func() {}); err != nil || p.Seen().Restored || p.Seen().Epoch != 11 {
		t.Errorf("%v, %+v", err, p.Seen())
	}
	<-changed
	if _, again, _ := p.Turn(r); !again {
		t.Error("the watch does not list again with the raised epochs")
	}
	p.End(r)
}

// TestBase: two nodes that have seen nearly the same get the same base.
func TestBase(t *testing.T) {
	for _, c := range []struct {
		seen     holdfast.Epoch
		base, at holdfast.Revision
		want     holdfast.Revision
	}{
		{120, 0, 100, epochStep},
		{119, 0, 101, epochStep},
		{120, epochStep, 102, epochStep}, // another node has raised it
		{120, 0, 1000, 0},                // restored with a raised revision
		{epochStep + 7, 0, 100, 2 * epochStep},
		{epochStep + 7, epochStep, 3, 2 * epochStep},
	} {
		if got := (Seen{Epoch: c.seen}).Base(c.base, c.at); got != c.want || got+c.at < holdfast.Revision(c.seen) {
			t.Errorf("seen %d, base %d, revision %d: base %d, want %d", c.seen, c.base, c.at, got, c.want)
		}
	}
}

// TestRewritten: a list has a record that its reader must know.
func TestRewritten(t *testing.T) {
	view := View{"a": 3, "b": 7}
	for name, c := range map[string]struct {
		listed []holdfast.Owner
		want   bool
	}{
		"nothing new":        {[]holdfast.Owner{{Key: "a", Revision: 3}}, false},
		"a later one":        {[]holdfast.Owner{{Key: "a", Revision: 9}, {Key: "c", Revision: 10}}, false},
		"an earlier version": {[]holdfast.Owner{{Key: "b", Revision: 5}}, true},
		"a released one":     {[]holdfast.Owner{{Key: "c", Revision: 2}}, true},
	} {
		if got := view.Rewritten(c.listed, 8); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
