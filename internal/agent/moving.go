package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/fleet"
	"holdfast/internal/kill"
	"holdfast/internal/move"
	"holdfast/internal/runsc"
	"holdfast/internal/store"
)

// imageLife is how long an image waits for its session's claim here.
const imageLife = time.Minute

// mover carries sessions' memory to other nodes, and takes in what comes from
// them. Its images are never on a disk where the work directory is in memory.
type mover struct {
	runsc runsc.Runtime
	work  string // directory of our own, on the file system of runsc.Images
	most  int64  // bytes of one image
	store store.Store
	log   *slog.Logger
	told  *moveMetrics
	fleet *fleet.Fleet // set before anything is saved

	mu  sync.Mutex
	got map[holdfast.SessionKey]arrived
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
		most: int64(c.MaxImage), store: a.store, log: a.log, told: newMoveMetrics(a.metrics), got: map[holdfast.SessionKey]arrived{},
	}
	if err := os.MkdirAll(m.runsc.Images, 0o700); err != nil {
		return nil, fmt.Errorf("moving.staged: %w", err)
	}
	if err := m.runsc.Check(); err != nil {
		return nil, fmt.Errorf("moving: %w", err)
	}
	// What an earlier agent left is of no life that follows.
	if err := os.RemoveAll(m.work); err != nil {
		return nil, fmt.Errorf("moving.staged: %w", err)
	}
	if err := os.Mkdir(m.work, 0o700); err != nil {
		return nil, fmt.Errorf("moving.staged: %w", err)
	}
	if err := m.runsc.Install(c.Runtime); err != nil {
		return nil, err
	}
	return m, nil
}

// Save implements session.Mover.
func (m *mover) Save(ctx context.Context, o holdfast.Owner, t *kill.Target) error {
	if err := m.fleet.CanSend(o.Key, o.Epoch); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(m.work, "save-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	begun := time.Now()
	if err := m.runsc.Checkpoint(ctx, o.ContainerID, t.Pid(), dir); err != nil {
		return err
	}
	m.told.took(partCheckpoint, begun)
	begun = time.Now()
	l := move.Label{Key: o.Key, Epoch: o.Epoch, Template: o.Template, TakenAt: begun.UTC()}
	err = m.fleet.SendImage(ctx, o.Key, o.Epoch, func(w io.Writer) error { return move.Pack(m.told.counting(w), l, dir) })
	if err == nil {
		m.told.took(partStream, begun)
	}
	return err
}

// receive takes an image in, for the fleet.
func (m *mover) receive(_ context.Context, image io.Reader, expected func(holdfast.SessionKey, holdfast.Epoch) error) error {
	dir, err := os.MkdirTemp(m.work, "got-*")
	if err != nil {
		return err
	}
	inner := filepath.Join(dir, "image")
	l, err := move.Unpack(image, inner, m.most, func(l move.Label) error { return expected(l.Key, l.Epoch) })
	if err != nil {
		os.RemoveAll(dir)
		return err
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
func (m *mover) Stage(ctx context.Context, o holdfast.Owner, container string) bool {
	m.mu.Lock()
	a, ok := m.got[o.Key]
	delete(m.got, o.Key) // whatever becomes of it: nobody gets it twice
	m.mu.Unlock()
	if !ok {
		return false
	}
	defer m.drop(a)
	if follows, err := m.store.Follows(ctx, o.Key, a.Epoch, o.Epoch); err != nil || !follows {
		m.log.Warn("a session's memory is lost: its image is not of the life before this one", "session", o.Key, "of", a.Epoch, "epoch", o.Epoch, "err", err)
		return false
	}
	if err := m.runsc.Stage(container, filepath.Join(a.dir, "image")); err != nil {
		m.log.Warn("a session's memory is lost", "session", o.Key, "epoch", o.Epoch, "err", err)
		return false
	}
	return true
}

// Started implements session.Mover.
func (m *mover) Started(container string) {
	if _, err := m.runsc.Unstage(container); err != nil {
		m.log.Warn("an image of a session's memory stays behind", "container", container, "err", err)
	}
}
