package dashboard

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/doctor/recordings"
	"holdfast/internal/hosts/doctor/watch"
	"holdfast/internal/hosts/gc"
	"holdfast/internal/hosts/spinup"
)

// Source is what the pages read. Any goroutine may call its functions.
type Source struct {
	Version  api.Version
	Nodes    func(ctx context.Context) ([]holdfast.Node, error)
	Sessions func(ctx context.Context) ([]api.Session, error)

	// These are of this node, as in api.Parts.
	Commands      func(ctx context.Context, key holdfast.SessionKey) ([]holdfast.Command, error)
	Endings       func(ctx context.Context, key holdfast.SessionKey, limit int) (holdfast.EndingReport, error)
	Spinups       func(f spinup.Filter) ([]spinup.Record, error)
	Spinup        func(id string) (spinup.Record, error)
	SlowRules     func() spinup.Rules
	FleetSpinups  api.FleetSpinups // of all nodes; nil if other hosts are unknown
	GCStatus      func(ctx context.Context) (gc.Status, error)
	GCHistory     func(limit int) ([]gc.Cycle, error)
	Protection    func(ctx context.Context) (api.Protection, error)
	DoctorStatus  func(ctx context.Context) (api.DoctorStatus, error)
	DoctorHistory func(since time.Time, limit int) (watch.History, error)
	Ranking       func(ctx context.Context, by ranking.By) (ranking.Ranking, error)
	Recordings    func() ([]recordings.Recording, error)
	Recording     func(id string) (*profile.Profile, error)
}

// SourceOf returns the Source that reads the parts of an agent.
func SourceOf(p api.Parts) Source {
	return Source{
		Version: p.Version, Nodes: p.Nodes.Nodes, Sessions: p.Sessions.Sessions, Commands: p.Commands.Commands, Endings: p.History.Endings,
		Spinups: p.Spinups.List, Spinup: p.Spinups.Get, SlowRules: p.Spinups.Rules, FleetSpinups: p.FleetSpinups,
		GCStatus: p.GC.Status, GCHistory: p.GC.History, Protection: p.Protection,
		DoctorStatus: p.Doctor.Status, DoctorHistory: p.Doctor.History, Ranking: p.Doctor.Ranking,
		Recordings: p.Recordings.List, Recording: p.Recordings.Open,
	}
}

// Options are the options of a Dashboard.
type Options struct {
	// Access has the access rules; they are those of the API on the same listener.
	Access api.Options
	// API answers every request that is not for a page, and carries out actions.
	API http.Handler
	// SessionURL returns where a browser that sent r opens a session; "" if that is
	// unknown. nil: always unknown.
	SessionURL func(r *http.Request, key holdfast.SessionKey) string
	// Metrics are the metrics of /metrics; nil: none.
	Metrics prometheus.Gatherer
	Log     *slog.Logger
}

// Bounds of the pages.
const (
	maxForm     = 8 << 10          // bytes of a form
	formLimit   = 10 * time.Second // to send one
	askLimit    = 10 * time.Second // to answer a page
	actLimit    = 6 * time.Minute  // to carry out an action
	maxForms    = 32               // logins received at once
	maxHeavy    = 2                // recordings read and questions to the fleet at once
	maxQuery    = 128              // bytes of a search
	rowsPerPage = 100
	maxStreams  = 256 // live pages at once
	minEvery    = 2 * time.Second
)

// Dashboard is a handler for the pages. Run keeps open pages up to date. Without it a
// page shows the data of its request.
type Dashboard struct {
	source Source
	o      Options
	assets assets
	recent recent

	ends       ends
	states     *cached[*state]
	metrics    *cached[gathered]
	spins      *cached[[]spin]
	collected  *cached[collection]
	protection *cached[api.Protection]
	doctor     *cached[api.DoctorStatus]
	history    *cached[watch.History]

	hub   *hub
	cross *http.CrossOriginProtection
	forms chan struct{} // a token for each form of an unknown caller
	heavy chan struct{} // a token for each recording that is read, and each question to the fleet
}

// New returns a Dashboard; it starts nothing.
func New(s Source, o Options) (*Dashboard, error) {
	a, err := loadAssets()
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	d := &Dashboard{source: s, o: o, assets: a, cross: http.NewCrossOriginProtection(), forms: make(chan struct{}, maxForms), heavy: make(chan struct{}, maxHeavy)}
	d.ends.ask = s.Endings
	d.states = newCached(minEvery/2, readState(s))
	d.spins = newCached(spinsFresh, (&spins{source: s}).read)
	d.collected = newCached(minEvery/2, func(ctx context.Context) (collection, error) { return readCollection(ctx, s) })
	d.protection = newCached(minEvery/2, s.Protection)
	d.doctor = newCached(minEvery/2, s.DoctorStatus)
	d.history = newCached(historyFresh, func(context.Context) (watch.History, error) {
		return s.DoctorHistory(time.Time{}, historyKept)
	})
	d.metrics = newCached(minEvery/2, func(context.Context) (gathered, error) { return gather(o.Metrics) })
	d.hub = newHub(d.fragments)
	return d, nil
}

// Run keeps open pages up to date, and collects the data of the last hour, until ctx is
// done.
func (d *Dashboard) Run(ctx context.Context) error {
	var both errgroup.Group
	both.Go(func() error { return d.hub.run(ctx) })
	both.Go(func() error { return d.watchSLO(ctx) })
	return both.Wait()
}

// Handler answers the pages, and passes all other requests to the API.
func (d *Dashboard) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, p := range pages() {
		mux.HandleFunc("GET "+p.pattern, d.forReader(func(w http.ResponseWriter, r *http.Request, c api.Caller) error { return d.show(w, r, c, p) }))
		if p.static {
			continue
		}
		mux.HandleFunc("GET /live/"+p.name, d.forReader(func(w http.ResponseWriter, r *http.Request, c api.Caller) error { return d.stream(w, r, c, p) }))
	}
	mux.HandleFunc("GET /sessions/{key}/open", d.forReader(d.openSession))
	mux.HandleFunc("POST /sessions/{key}/{act}", d.forReader(d.actOnSession))
	mux.HandleFunc("POST /doctor/recordings", d.forReader(d.record))
	mux.HandleFunc("GET /doctor/difference", d.forReader(d.difference))
	mux.HandleFunc("GET /login", d.open(d.loginPage))
	mux.HandleFunc("POST /login", d.open(d.login))
	mux.HandleFunc("POST /logout", d.open(d.logout))
	mux.HandleFunc("GET /assets/{version}/{file...}", d.asset)
	mux.Handle("/", d.o.API)
	return mux
}
