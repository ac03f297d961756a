package apitest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/hosts/spinup/underway"
)

// SetSpinups sets the records, in any order.
func (b *Backend) SetSpinups(records []spinup.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spinups = slices.SortedFunc(slices.Values(records), func(x, y spinup.Record) int { return strings.Compare(y.ID, x.ID) })
}

// spinups implements api.Spinups.
type spinups struct{ b *Backend }

func (s spinups) List(f spinup.Filter) ([]spinup.Record, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	var out []spinup.Record
	for _, r := range s.b.spinups {
		if f.Takes(r) && (f.Limit <= 0 || len(out) < f.Limit) {
			out = append(out, r)
		}
	}
	return out, s.b.fault
}

func (s spinups) Get(id string) (spinup.Record, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	for _, r := range s.b.spinups {
		if s.b.fault == nil && strings.HasPrefix(r.ID, id) {
			return r, nil
		}
	}
	if s.b.fault != nil {
		return spinup.Record{}, s.b.fault
	}
	return spinup.Record{}, fmt.Errorf("spin-up %s: %w", id, holdfast.ErrNotFound)
}

func (s spinups) Report(q spinup.Question) (spinup.Report, error) {
	records, err := s.List(q.Filter)
	if err != nil {
		return spinup.Report{}, err
	}
	return spinup.NewReport(records, q, s.Rules())
}

func (s spinups) Sketch(q spinup.Question) (spinup.Sketch, error) {
	records, err := s.List(q.Filter)
	return spinup.NewSketch(records, q, s.Rules()), err
}

// FleetSpinups implements api.FleetSpinups for a fleet of this node and n2, which does not
// answer.
func (b *Backend) FleetSpinups(_ context.Context, q spinup.Question) (spinup.FleetReport, error) {
	own, err := spinups{b}.Sketch(q)
	if err != nil {
		return spinup.FleetReport{}, err
	}
	return spinup.FleetReportOf([]spinup.NodeSketch{{Node: b.node(), Sketch: own}, {Node: "n2", Err: errors.New("nothing listens at node n2")}}, q)
}

func (spinups) Rules() spinup.Rules { return spinup.DefaultRules() }

func (s spinups) Add(r spinup.Record) error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.b.fault == nil {
		s.b.spinups = append([]spinup.Record{r}, s.b.spinups...)
	}
	return s.b.fault
}

// underWay implements api.UnderWay; ids count from 1.
type underWay struct{ b *Backend }

func (u underWay) Active() []underway.Entry {
	u.b.mu.Lock()
	defer u.b.mu.Unlock()
	return slices.Clone(u.b.underWay)
}

func (u underWay) Begin(kind, name string, life time.Duration) (underway.Entry, error) {
	u.b.mu.Lock()
	defer u.b.mu.Unlock()
	if u.b.fault != nil {
		return underway.Entry{}, u.b.fault
	}
	u.b.begun++
	e := underway.Entry{ID: fmt.Sprintf("%016d", u.b.begun), Kind: kind, Name: name, Begun: Began, Until: Began.Add(life)}
	u.b.underWay = append(u.b.underWay, e)
	return e, nil
}

func (u underWay) End(id string) error {
	u.b.mu.Lock()
	defer u.b.mu.Unlock()
	if u.b.fault != nil {
		return u.b.fault
	}
	i := slices.IndexFunc(u.b.underWay, func(e underway.Entry) bool { return e.ID == id })
	if i < 0 {
		return fmt.Errorf("spin-up %q is not under way: %w", id, holdfast.ErrNotFound)
	}
	u.b.underWay = slices.Delete(u.b.underWay, i, i+1)
	return nil
}

// Samples are records as an agent may have them, the same every time, the newest at
// Began. They are of two drivers, of which one is slow to create. Among them are a
// record of a session with a pull of two layers, a failure, and a record of another
// program.
func Samples() []spinup.Record {
	var out []spinup.Record
	add := func(kind spinup.Kind, image, driver string) *spinup.Record {
		begun := Began.Add(-time.Duration(len(out)) * time.Minute)
		out = append(out, spinup.Record{
			ID: fmt.Sprintf("%016x%08x", begun.UnixNano(), len(out)), Kind: kind, Image: image, Begun: begun, Outcome: spinup.OK,
			Cohort: spinup.Cohort{Host: "n1", Engine: "docker 20.10.24", Driver: driver, ImageStore: "graphdriver", Kernel: "6.1.0"},
			Times:  map[spinup.Phase]holdfast.Millis{},
		})
		return &out[len(out)-1]
	}
	seconds := func(s float64) holdfast.Millis { return holdfast.Millis(s * float64(time.Second)) }
	r := add(spinup.ForSession, "registry.example/team/shell:1", "overlay2")
	r.Job, r.Name, r.Container, r.Digest, r.Took = "alice", "holdfast-alice-7", strings.Repeat("c0", 32), "sha256:"+strings.Repeat("d1", 32), seconds(13.4)
	r.Times = map[spinup.Phase]holdfast.Millis{spinup.Download: seconds(8), spinup.Extract: seconds(4), spinup.Create: seconds(.1), spinup.Start: seconds(.2), spinup.Ready: seconds(1)}
	layer := func(id string, mib int64) spinup.Layer {
		return spinup.Layer{ID: id, State: spinup.Complete, Size: mib << 20, Fetched: mib << 20, Queued: seconds(.05),
			Download: spinup.Span{From: seconds(.05), To: seconds(8.05)}, DownloadTime: seconds(8), Extract: spinup.Span{From: seconds(8.1), To: seconds(10.1)}, Waited: seconds(.05)}
	}
	r.Pull = &spinup.Pull{Image: r.Image, Digest: r.Digest, Begun: r.Begun, Took: seconds(12.1), Resolve: seconds(.05), Done: true,
		Download: spinup.Transfer{Bytes: 80 << 20, Wall: seconds(8), Sum: seconds(16), Rate: 10, Exact: true},
		Extract:  spinup.Transfer{Bytes: 80 << 20, Wall: seconds(4), Sum: seconds(4), Rate: 20, Exact: true},
		Layers:   []spinup.Layer{layer("aaaaaaaaaaaa", 60), layer("bbbbbbbbbbbb", 20)}}
	r = add(spinup.ForRun, "registry.example/missing:9", "overlay2")
	r.Job, r.Took = "run-1", seconds(.4)
	r.Outcome, r.Failed, r.Cause, r.Error = spinup.Failed, spinup.Download, spinup.NoImage, "manifest for registry.example/missing:9 not found"
	r.Pull = &spinup.Pull{Image: r.Image, Begun: r.Begun, Took: r.Took, Layers: []spinup.Layer{}}
	r = add(spinup.ForOther, "nginx", "overlay2")
	r.Name, r.Container, r.Took, r.Pulled = "web", strings.Repeat("ab", 32), seconds(3), r.Begun.Add(-2*time.Second)
	r.Times = map[spinup.Phase]holdfast.Millis{spinup.Create: seconds(.2), spinup.Start: seconds(.3)}
	for i := range 60 {
		driver, create := "overlay2", .1+.001*float64(i)
		if i%3 == 0 {
			driver, create = "aufs", 9.5+.05*float64(i)
		}
		r := add(spinup.ForRun, "busybox:1", driver)
		r.Took = seconds(create + .2)
		r.Times = map[spinup.Phase]holdfast.Millis{spinup.Create: seconds(create), spinup.Start: seconds(.2)}
		r.Pull = &spinup.Pull{Image: r.Image, Begun: r.Begun, Done: true, Cached: true, Layers: []spinup.Layer{}}
	}
	return out
}
