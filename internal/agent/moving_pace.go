package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/sessions/fleet"
	"holdfast/internal/sessions/move/budget"
	"holdfast/internal/sessions/session"
)

const (
	// saveLanes is how many containers are saved side by side, at most.
	saveLanes = 4
	// saveMargin is the part of the time that is planned with, as rates are what
	// they were on average.
	saveMargin = 0.8
	// imageMargin is what an image may have beyond what its container's memory
	// takes up, in bytes: the state of its kernel.
	imageMargin = 4 << 20
)

// pace learns how fast this host saves, sends and restores, and keeps that in a
// file. Its methods may be called from any goroutine.
type pace struct {
	file string
	log  *slog.Logger

	mu    sync.Mutex
	rates budget.Rates // its lines are learnt with mu held
	now   map[*budget.Line]int
}

func newPace(file string, reg prometheus.Registerer, log *slog.Logger) *pace {
	rates, err := budget.Load(file)
	if err != nil {
		log.Warn("how fast sessions are saved has to be learnt anew", "err", err)
	}
	p := &pace{file: file, log: log, rates: rates, now: map[*budget.Line]int{}}
	p.register(reg)
	return p
}

// register shows the rates as metrics.
func (p *pace) register(reg prometheus.Registerer) {
	for name, line := range map[string]*budget.Line{"save": &p.rates.Save, "spill": &p.rates.Spill, "send": &p.rates.Send, "restore": &p.rates.Restore} {
		labels := prometheus.Labels{"part": name}
		reg.MustRegister(
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "holdfast_moving_fixed_seconds", ConstLabels: labels,
				Help: "What this host is thought to take for a session of no size, by part (save: into memory, spill: onto disk, send, restore). Learnt from what it took.",
			}, func() float64 { return p.of(line).Fixed.Seconds() }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "holdfast_moving_seconds_per_megabyte", ConstLabels: labels,
				Help: "What this host is thought to take for each million bytes of an image beside that, by part.",
			}, func() float64 { return p.of(line).PerMB.Seconds() }),
		)
	}
}

func (p *pace) of(line *budget.Line) budget.Pace {
	p.mu.Lock()
	defer p.mu.Unlock()
	return line.Pace()
}

// known are the rates as they are now.
func (p *pace) known() budget.Rates {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rates
}

func (p *pace) learn(line *budget.Line, bytes int64, took time.Duration, sharers float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line.Learn(bytes, took, sharers)
}

// enter and leave count who is at it.
func (p *pace) enter(line *budget.Line) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now[line]++
	return p.now[line]
}

func (p *pace) leave(line *budget.Line) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now[line]--
	return p.now[line] + 1
}

// timeSized does work, which returns how many bytes it was, and learns from it.
func (p *pace) timeSized(line *budget.Line, work func() (int64, error)) error {
	first, begun := p.enter(line), time.Now()
	bytes, err := work()
	took, last := time.Since(begun), p.leave(line)
	if err == nil {
		p.learn(line, bytes, took, float64(first+last)/2)
	}
	return err
}

func (p *pace) time(line *budget.Line, bytes int64, work func() error) error {
	return p.timeSized(line, func() (int64, error) { return bytes, work() })
}

// keep writes what was learnt.
func (p *pace) keep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.rates.Store(p.file); err != nil {
		p.log.Warn("what was learnt of how fast sessions are saved will be forgotten", "err", err)
	}
}

// Choose implements session.Mover.
func (m *mover) Choose(until time.Time, all []session.Leaving) session.Choice {
	var c session.Choice
	var able []session.Leaving
	var sizes []budget.Session
	for _, l := range all {
		err := m.fleet.CanSend(l.Owner.Key, l.Owner.Epoch)
		if err == nil {
			l.Bytes, err = m.runsc.Size(l.Owner.ContainerID, l.Target.Pid())
			l.Bytes += imageMargin
		}
		if err != nil {
			c.Lost = append(c.Lost, lostMemory(l, err.Error()))
			continue
		}
		able = append(able, l)
		sizes = append(sizes, budget.Session{Bytes: l.Bytes, Priority: l.Priority, Connected: l.Connected})
	}
	// The successors wait so long, whatever the notice.
	left := min(time.Until(until), fleet.ExpectTime)
	d := budget.Plan(sizes, budget.Limits{
		Time: time.Duration(float64(left) * saveMargin), Lanes: saveLanes,
		Memory: m.rooms.free(m.work), Disk: m.rooms.free(m.spill), MaxImage: m.most,
	}, m.pace.known())
	c.Lanes, c.Takes = d.Lanes, d.Takes
	for _, s := range d.Save {
		l := able[s.Index]
		l.OnDisk = s.Place == budget.OnDisk
		c.Save = append(c.Save, l)
	}
	for _, s := range d.Lost {
		c.Lost = append(c.Lost, lostMemory(able[s.Index], s.Why))
	}
	m.log.Info("sessions' memory: chosen what is saved", "of", len(all), "save", len(c.Save), "lost", len(c.Lost), "takes", d.Takes.Round(time.Millisecond), "time", left.Round(time.Millisecond))
	return c
}

func lostMemory(l session.Leaving, why string) holdfast.LostMemory {
	return holdfast.LostMemory{Key: l.Owner.Key, Epoch: l.Owner.Epoch, Bytes: max(0, l.Bytes-imageMargin), Reason: why}
}

// roomIn is how many bytes of images there is room for in a directory; a tenth of
// what is free is left to others. 0 for "", or where it cannot be known. In a tmpfs
// they are memory, of which the host has to have them, too.
func roomIn(dir string) int64 {
	var fs unix.Statfs_t
	if dir == "" || unix.Statfs(dir, &fs) != nil {
		return 0
	}
	room := int64(fs.Bavail) * fs.Bsize
	if fs.Type == unix.TMPFS_MAGIC {
		m, err := (&load{root: "/proc"}).memory()
		if err != nil {
			return 0
		}
		room = min(room, m.Available)
	}
	return room / 10 * 9
}

// bytesIn is the bytes of a directory's files.
func bytesIn(dir string) (total int64, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		fi, err := os.Lstat(name)
		if err != nil {
			return 0, err
		}
		total += fi.Size()
	}
	return total, nil
}
