package move

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/sessions/move/budget"
)

const (
	// saveLanes limits how many containers are saved concurrently.
	saveLanes = 4
	// saveMargin is the part of the time that Plan uses, because the rates are
	// averages.
	saveMargin = 0.8
	// imageMargin is the size that an image may have beyond the memory of its
	// container, in bytes: the state of the sandbox kernel.
	imageMargin = 4 << 20
)

// rates learns how fast this host saves, sends and restores, and keeps that in a
// file. Its methods may be called from any goroutine.
type rates struct {
	file string
	log  *slog.Logger

	mu     sync.Mutex
	rates  budget.Rates // its lines learn with mu held
	dirty  bool         // the file has older rates
	active map[*budget.Line]int
}

func newRates(file string, reg prometheus.Registerer, log *slog.Logger) *rates {
	loaded, err := budget.Load(file)
	if err != nil {
		log.Warn("the measured rates of saving sessions cannot be read; they are learned again", "err", err)
	}
	r := &rates{file: file, log: log, rates: loaded, active: map[*budget.Line]int{}}
	r.register(reg)
	return r
}

// register exports the rates as metrics.
func (r *rates) register(reg prometheus.Registerer) {
	for name, line := range map[string]*budget.Line{"save": &r.rates.Save, "spill": &r.rates.Spill, "send": &r.rates.Send, "restore": &r.rates.Restore} {
		labels := prometheus.Labels{"part": name}
		reg.MustRegister(
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "holdfast_moving_overhead_seconds", ConstLabels: labels,
				Help: "Estimated fixed overhead of a move on this host, without the transfer of memory, in seconds, by part (save: into memory, spill: onto disk, send, restore). Learned from completed moves.",
			}, func() float64 { return r.pace(line).Fixed.Seconds() }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "holdfast_moving_seconds_per_megabyte", ConstLabels: labels,
				Help: "Estimated time of a move on this host for each million bytes of an image, in addition to the fixed overhead, by part.",
			}, func() float64 { return r.pace(line).PerMB.Seconds() }),
		)
	}
}

func (r *rates) pace(line *budget.Line) budget.Pace {
	r.mu.Lock()
	defer r.mu.Unlock()
	return line.Pace()
}

// snapshot returns a copy of the present rates.
func (r *rates) snapshot() budget.Rates {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rates
}

func (r *rates) learn(line *budget.Line, bytes int64, took time.Duration, sharers float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	line.Learn(bytes, took, sharers)
	r.dirty = true
}

// count adds n to the number of concurrent operations of a line, and returns it.
func (r *rates) count(line *budget.Line, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.active[line] += n
	return r.active[line]
}

// timeSized calls work, which returns the bytes that it processed, and learns from
// its duration.
func (r *rates) timeSized(line *budget.Line, work func() (int64, error)) error {
	first, begun := r.count(line, 1), time.Now()
	bytes, err := work()
	took, last := time.Since(begun), r.count(line, -1)+1
	if err == nil {
		r.learn(line, bytes, took, float64(first+last)/2)
	}
	return err
}

func (r *rates) time(line *budget.Line, bytes int64, work func() error) error {
	return r.timeSized(line, func() (int64, error) { return bytes, work() })
}

// save writes the rates to the file, if they have changed. A write waits for the disk, so only
// Run calls it.
func (r *rates) save() {
	r.mu.Lock()
	dirty, rates := r.dirty, r.rates
	r.dirty = false
	r.mu.Unlock()
	if !dirty {
		return
	}
	if err := rates.Store(r.file); err != nil {
		r.log.Warn("the measured rates of saving sessions cannot be written", "err", err)
	}
}

// Plan implements session.Mover.
func (m *Mover) Plan(until time.Time, all []Departing) Plan {
	var p Plan
	var able []Departing
	var sizes []budget.Session
	for _, d := range all {
		err := m.peers.CanSend(d.Owner.Key, d.Owner.Epoch)
		if err == nil {
			d.Bytes, err = m.runsc.Size(d.Owner.ContainerID, d.Target.Pid())
			d.Bytes += imageMargin
		}
		if err != nil {
			p.Lost = append(p.Lost, lostMemory(d, err.Error()))
			continue
		}
		able = append(able, d)
		sizes = append(sizes, budget.Session{Bytes: d.Bytes, Priority: d.Priority, Connected: d.Connected})
	}
	// A successor waits for successorWait at most, even if the notice allows more time.
	left := min(time.Until(until), m.o.SuccessorWait)
	decision := budget.Plan(sizes, budget.Limits{
		Time: time.Duration(float64(left) * saveMargin), Lanes: saveLanes,
		Memory: m.space.free(m.work), Disk: m.space.free(m.spill), MaxImage: m.o.MaxImage,
	}, m.rates.snapshot())
	p.Lanes, p.Takes = decision.Lanes, decision.Takes
	for _, s := range decision.Save {
		d := able[s.Index]
		d.OnDisk = s.Place == budget.OnDisk
		p.Save = append(p.Save, d)
	}
	for _, s := range decision.Lost {
		p.Lost = append(p.Lost, lostMemory(able[s.Index], s.Why))
	}
	m.o.Log.Info("selected the sessions whose memory is saved", "of", len(all), "save", len(p.Save), "lost", len(p.Lost), "takes", decision.Takes.Round(time.Millisecond), "time", left.Round(time.Millisecond))
	return p
}

func lostMemory(d Departing, why string) holdfast.LostMemory {
	return holdfast.LostMemory{Key: d.Owner.Key, Epoch: d.Owner.Epoch, Bytes: max(0, d.Bytes-imageMargin), Reason: why}
}
