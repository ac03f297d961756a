package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/runsc"
	"holdfast/internal/platform/store"
	"holdfast/internal/sessions/fleet"
	"holdfast/internal/sessions/move"
	"holdfast/internal/sessions/session"
)

// imageLife is how long an image waits for its session's claim here.
const imageLife = time.Minute

// mover carries sessions' memory to other nodes, and takes in what comes from
// them. Its images are never on a disk where the work directory is in memory.
type mover struct {
	runsc runsc.Runtime
	work  string // directory of our own, on the file system of runsc.Images
	spill string // the same on a disk, for what there is no room for in memory; "" is none
	most  int64  // bytes of one image
	pace  *pace
	node  holdfast.NodeID
	store store.Store
	log   *slog.Logger
	told  *moveMetrics
	fleet *fleet.Fleet // set before anything is saved; nil for a node on its own

	shelf   *shelf // nil: noShelf says why
	noShelf error

	putting sync.Mutex // one image is put on the shelf at a time: what makes room for it counts those before it

	rooms  *rooms
	asleep *sleepers

	mu     sync.Mutex
	got    map[holdfast.SessionKey]arrived
	starts map[string]restoring // by container
}

// restoring is a container that is about to be started from an image.
type restoring struct {
	at    time.Time
	bytes int64
}

// arrived is an image that came in.
type arrived struct {
	move.Label
	dir string
	at  time.Time
}

// newMover returns what carries memory; nil where no template asks for it, or
// where it cannot be: sessions boot fresh then.
func (a *Agent) newMover() *mover {
	if !a.cfg.SavesMemory() {
		return nil
	}
	m, err := a.openMover()
	if err != nil {
		a.log.Warn("sessions cannot take their memory along from or to this node", "err", err, "hint", holdfast.HintOf(err))
		return nil
	}
	return m
}

func (a *Agent) openMover() (*mover, error) {
	c := a.cfg.Moving
	staged := a.cfg.StagedDir()
	m := &mover{
		runsc: runsc.Runtime{Program: c.Runsc, Images: staged}, work: staged + "." + string(a.node),
		most: int64(c.MaxImage), pace: newPace(filepath.Join(a.cfg.DataDir, "moving-rates.json"), a.metrics, a.log),
		node: a.node, store: a.store, log: a.log, told: newMoveMetrics(a.metrics), got: map[holdfast.SessionKey]arrived{}, starts: map[string]restoring{},
		rooms: newRooms(), asleep: newSleepers(),
	}
	if c.Spill != "" {
		m.spill = filepath.Join(c.Spill, "images."+string(a.node))
	}
	if err := os.MkdirAll(m.runsc.Images, 0o700); err != nil {
		return nil, fmt.Errorf("moving.staged: %w", err)
	}
	if err := m.runsc.Check(); err != nil {
		return nil, fmt.Errorf("moving: %w", err)
	}
	// What an earlier agent left is of no life that follows: neither what it had
	// staged for containers, which are ended where they were not ready, nor what
	// was on its way.
	if err := m.runsc.Sweep(); err != nil {
		return nil, fmt.Errorf("moving.staged: %w", err)
	}
	for key, dir := range map[string]string{"staged": m.work, "spill": m.spill} {
		if dir == "" {
			continue
		}
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
			return nil, fmt.Errorf("moving.%s: %w", key, err)
		}
	}
	if err := m.runsc.Install(c.Runtime); err != nil {
		return nil, err
	}
	if m.shelf, m.noShelf = a.openShelf(); m.noShelf != nil {
		a.log.Warn("sessions cannot be suspended on this node", "err", m.noShelf, "hint", holdfast.HintOf(m.noShelf))
	}
	return m, nil
}

// Save implements session.Mover.
func (m *mover) Save(ctx context.Context, l session.Leaving) (int64, error) {
	o := l.Owner
	if err := m.fleet.CanSend(o.Key, o.Epoch); err != nil {
		return 0, err
	}
	dir, size, err := m.checkpoint(ctx, l)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	begun := time.Now()
	label := move.Label{Key: o.Key, Epoch: o.Epoch, Template: o.Template, TakenAt: begun.UTC()}
	err = m.pace.time(&m.pace.rates.Send, size, func() error {
		return m.fleet.SendImage(ctx, o.Key, o.Epoch, func(w io.Writer) error { return move.Pack(m.told.counting(w), label, dir) })
	})
	if err == nil {
		m.told.took(partStream, begun)
	}
	m.pace.keep()
	return size, err
}

// checkpoint saves a container into a new directory, in memory or on disk, and
// returns it with the bytes of its files.
func (m *mover) checkpoint(ctx context.Context, l session.Leaving) (dir string, size int64, err error) {
	at, line := m.work, &m.pace.rates.Save
	if l.OnDisk {
		at, line = m.spill, &m.pace.rates.Spill
	}
	if dir, err = os.MkdirTemp(at, "save-*"); err != nil {
		return "", 0, err
	}
	begun := time.Now()
	err = m.pace.timeSized(line, func() (int64, error) {
		if err := m.runsc.Checkpoint(ctx, l.Owner.ContainerID, l.Target.Pid(), dir); err != nil {
			return 0, err
		}
		size, err = bytesIn(dir)
		return size, err
	})
	if err != nil {
		return "", 0, errors.Join(err, os.RemoveAll(dir))
	}
	m.told.took(partCheckpoint, begun)
	return dir, size, nil
}

// receive takes an image in, for the fleet.
func (m *mover) receive(_ context.Context, image io.Reader, expected func(holdfast.SessionKey, holdfast.Epoch) error) error {
	dir, err := os.MkdirTemp(m.work, "got-*")
	if err != nil {
		return err
	}
	inner := filepath.Join(dir, "image")
	l, err := move.Unpack(image, inner, m.most, func(l move.Label) error { return expected(l.Key, l.Epoch) })
	if err == nil { // it may have come too late
		err = expected(l.Key, l.Epoch)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	m.mu.Lock()
	old := m.got[l.Key]
	m.got[l.Key] = arrived{l, dir, time.Now()}
	m.mu.Unlock()
	m.drop(old)
	time.AfterFunc(imageLife, m.expire)
	return nil
}

func (m *mover) drop(a arrived) {
	if a.dir == "" {
		return
	}
	if err := os.RemoveAll(a.dir); err != nil {
		m.log.Warn("an image of a session's memory stays behind", "session", a.Key, "err", err)
	}
}

// expire drops what nobody has claimed in time.
func (m *mover) expire() {
	m.mu.Lock()
	var old []arrived
	for key, a := range m.got {
		if time.Since(a.at) >= imageLife {
			old = append(old, a)
			delete(m.got, key)
		}
	}
	m.mu.Unlock()
	for _, a := range old {
		m.log.Warn("a session's memory is lost: nobody claimed it here in time", "session", a.Key, "epoch", a.Epoch)
		m.drop(a)
	}
}

// Stage implements session.Mover.
func (m *mover) Stage(ctx context.Context, o holdfast.Owner, left *holdfast.Suspended, container string) (bool, error) {
	m.mu.Lock()
	a, ok := m.got[o.Key]
	delete(m.got, o.Key) // whatever becomes of it: nobody gets it twice
	m.mu.Unlock()
	if ok && left != nil { // it came too late: what was left is of the life before this one
		m.drop(a)
		ok = false
	}
	if ok {
		follows, err := m.store.Follows(ctx, o.Key, a.Epoch, o.Epoch)
		if err == nil && !follows {
			err = fmt.Errorf("its image is of epoch %d, and not of the life before epoch %d", a.Epoch, o.Epoch)
		}
		if err != nil {
			m.drop(a)
			return false, err
		}
	}
	if !ok && left != nil {
		var err error
		if a, err = m.takeLeft(ctx, o, *left); err != nil {
			return false, err
		}
		ok = true
	}
	if !ok {
		return false, nil
	}
	defer m.drop(a)
	if err := m.runsc.Stage(container, filepath.Join(a.dir, "image")); err != nil {
		return false, err
	}
	m.mu.Lock()
	m.starts[container] = restoring{time.Now(), a.Bytes}
	m.mu.Unlock()
	return true, nil
}

// Started implements session.Mover.
func (m *mover) Started(container string, err error) {
	m.mu.Lock()
	r := m.starts[container]
	delete(m.starts, container)
	m.mu.Unlock()
	used, unstageErr := m.runsc.Unstage(container)
	if unstageErr != nil {
		m.log.Warn("an image of a session's memory stays behind", "container", container, "err", unstageErr)
	}
	if used && err == nil {
		m.pace.learn(&m.pace.rates.Restore, r.bytes, time.Since(r.at), 1)
		m.pace.keep()
	}
}
