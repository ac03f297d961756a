package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/hosts/spinup"
)

// hundred returns the records of a hundred spin-ups that ended together.
func hundred() []spinup.Record {
	var out []spinup.Record
	for i := range 100 {
		out = append(out, done(fmt.Sprint("image-", i)))
	}
	return out
}

// gathering is an agent with a store on disk. Add waits until recordAtOnce records have
// arrived, like a slow disk.
type gathering struct {
	*apitest.Backend
	api.Spinups
	store *spinup.Store
	here  atomic.Int32
	all   chan struct{}
}

func (g *gathering) Parts() api.Parts {
	p := g.Backend.Parts()
	g.Spinups, p.Spinups = p.Spinups, g
	return p
}

func (g *gathering) Add(r spinup.Record) error {
	if g.here.Add(1) == recordAtOnce {
		close(g.all)
	}
	select {
	case <-g.all:
		return g.store.Append(r)
	case <-time.After(20 * time.Second):
		return errors.New("too few records came together")
	}
}

func TestAHundredGoToTheAgent(t *testing.T) {
	d := newDesk(t)
	path := filepath.Join(d.dir, spinup.FileName)
	s, err := spinup.OpenStore(path, spinup.DefaultKeep(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	d.agent(t, &gathering{Backend: &apitest.Backend{}, store: s, all: make(chan struct{})})
	if err := d.Record(t.Context(), hundred()...); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := d.kept(t); len(got) != 100 {
		t.Errorf("%d of 100 are on disk", len(got))
	}
}

func TestAHundredGoToDisk(t *testing.T) {
	d := newDesk(t)
	if err := d.Record(t.Context(), hundred()...); err != nil {
		t.Error(err)
	}
	if got := d.kept(t); len(got) != 100 {
		t.Errorf("%d of 100 are on disk", len(got))
	}
}

// choosy is an agent that refuses the records of some images.
type choosy struct {
	*apitest.Backend
	api.Spinups
}

func (c choosy) Parts() api.Parts {
	p := c.Backend.Parts()
	c.Spinups, p.Spinups = p.Spinups, &c
	return p
}

func (c *choosy) Add(r spinup.Record) error {
	if strings.HasSuffix(r.Image, "5") {
		return errors.New("no fives")
	}
	return c.Spinups.Add(r)
}

// A record that cannot be kept does not affect the others, and the error counts the
// lost ones.
func TestALostRecordDoesNotAffectOthers(t *testing.T) {
	d, b := newDesk(t), &apitest.Backend{}
	d.agent(t, choosy{Backend: b})
	err := d.Record(t.Context(), hundred()...)
	if err == nil || !strings.HasPrefix(err.Error(), "recording the spin-up of image-5: ") || !strings.HasSuffix(err.Error(), "(10 of 100 are lost)") {
		t.Error(err)
	}
	if got, err := b.Parts().Spinups.List(spinup.Filter{}); err != nil || len(got) != 90 {
		t.Errorf("%d records, %v", len(got), err)
	}
}
