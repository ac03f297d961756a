package api

import (
	"context"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/underway"
)

// Bounds of what is told of spin-ups.
const (
	DefaultSpinups = 50   // records in a list
	MaxSpinups     = 1000 // the same, when asked for
	// DefaultUnderWay and MaxUnderWay are how long a spin-up that was
	// announced counts, if nobody ends it.
	DefaultUnderWay = 5 * time.Minute
	MaxUnderWay     = underway.MaxLife
)

// Spinups is what the agent knows of the spin-ups on its host, for a Backend.
type Spinups interface {
	// Spinups lists records, the newest first. The layers of pulls are in
	// Spinup only.
	Spinups(ctx context.Context, f spinup.Filter) ([]spinup.Record, error)

	// Spinup returns one, by its id or the beginning of it that no other
	// has. holdfast.ErrNotFound.
	Spinup(ctx context.Context, id string) (spinup.Record, error)

	// SpinupReport says how often phases were slow. holdfast.ErrNotFound
	// where the question names a group that there is not.
	SpinupReport(ctx context.Context, q spinup.Question) (spinup.Report, error)

	// SlowRules are those that the agent goes by.
	SlowRules() spinup.Rules

	// AddSpinup keeps a record that was checked. It returns when the record
	// is on disk. holdfast.ErrBusy while the records are not open.
	AddSpinup(ctx context.Context, r spinup.Record) error

	// SpinupsUnderWay lists those that have not ended, the oldest first.
	SpinupsUnderWay(ctx context.Context) ([]underway.Entry, error)

	// BeginSpinup counts one as under way until it is ended, or for life.
	// holdfast.ErrBusy where there are too many.
	BeginSpinup(ctx context.Context, kind, name string, life time.Duration) (underway.Entry, error)

	// EndSpinup ends what BeginSpinup began. holdfast.ErrNotFound.
	EndSpinup(ctx context.Context, id string) error
}

// SpinupList is the answer to a list of spin-ups.
type SpinupList struct {
	Spinups []JudgedSpinup `json:"spinups"`
}

// JudgedSpinup is a record with what the agent's rules say of it.
type JudgedSpinup struct {
	spinup.Record
	Slow []spinup.Phase `json:"slow"` // phases that were slow
}

// SpinupsUnderWay is the answer to what is under way.
type SpinupsUnderWay struct {
	UnderWay []underway.Entry `json:"under_way"`
}

// BeginSpinupRequest announces a spin-up.
type BeginSpinupRequest struct {
	// Name says what it is, to people; at most 128 bytes.
	Name string `json:"name,omitempty"`
	// Kind is pull or run for Holdfast's own commands; absent for all
	// others.
	Kind spinup.Kind `json:"kind,omitempty"`
	// For is how long it counts at most if nobody ends it, up to
	// MaxUnderWay; 0 is DefaultUnderWay.
	For holdfast.Millis `json:"for_ms,omitempty"`
}

// SpinupAdded is the answer to a record that is kept.
type SpinupAdded struct {
	ID string `json:"id"`
}
