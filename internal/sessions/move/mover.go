package move

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

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/runsc"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/hook"
	"holdfast/internal/sessions/kill"
)

// receivedLifetime is how long a received image waits until the session is claimed
// on this node.
const receivedLifetime = time.Minute

// Departing is a session that leaves its node and whose container can be saved.
type Departing struct {
	Owner     holdfast.Owner
	Target    *kill.Target
	Priority  int  // of the template
	Connected bool // clients are connected

	// Plan and Reserve set Bytes, the estimated size of the image, and OnDisk. OnDisk means
	// that the image does not fit in memory.
	Bytes  int64
	OnDisk bool
}

// Plan is the selection of the sessions that are saved.
type Plan struct {
	Save  []Departing   // in the order in which to start
	Lanes int           // saved concurrently; at least 1 if Save is not empty
	Takes time.Duration // estimated time for all of them
	Lost  []holdfast.LostMemory
}

// Peers are the other nodes, as the Mover uses them. *fleet.Fleet implements it.
type Peers interface {
	// CanSend returns an error if no successor is known for that epoch of the session.
	CanSend(holdfast.SessionKey, holdfast.Epoch) error
	// SendImage streams an image to the successor.
	SendImage(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch, write func(io.Writer) error) error
	// TakeImage reads an image from the node that keeps it, for the claim next.
	TakeImage(ctx context.Context, left holdfast.Suspended, next holdfast.Epoch, read func(io.Reader) error) error
	// CopyImage reads a snapshot from the node that keeps it, for the claim next of key.
	CopyImage(ctx context.Context, s holdfast.MemorySnapshot, key holdfast.SessionKey, next holdfast.Epoch, read func(io.Reader) error) error
}

// Options configure a Mover.
type Options struct {
	Node    holdfast.NodeID
	Runsc   string // path of runsc
	Runtime string // path at which the program is registered with the engine
	Staged  string // directory of images that containers are about to be restored from
	Spill   string // directory on disk for images that memory has no space for; "": none
	// MaxImage is the size limit of one image, in bytes.
	MaxImage int64
	// RatesFile keeps the measured rates of saving, sending and restoring.
	RatesFile string
	// SeenFile keeps the revision up to which this node has seen the claims of its
	// suspended sessions.
	SeenFile string
	// SuccessorWait is the longest time that a successor waits for an image.
	SuccessorWait time.Duration
	Suspended     SuspendOptions

	Store   store.Store
	Hooks   hook.Runner
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Mover saves the memory of sessions for their next epoch, and restores it. Its
// methods may be called from any goroutine, except Join.
type Mover struct {
	o       Options
	runsc   runsc.Runtime
	work    string // a directory of this node, on the file system of runsc.Images
	spill   string // the same on disk; "": none
	rates   *rates
	metrics *metrics
	peers   Peers // nil: this node has no others

	images     *suspendedStore // nil for the reason noImages
	noImages   error
	storing    sync.Mutex // one image is stored at a time: freeing space counts those before it
	space      *reservations
	suspendeds *suspendedIndex
	missing    missing
	seen       seen // used by Run
	completes  completes

	mu       sync.Mutex
	copies   map[holdfast.SessionKey]receivedImage // images of forks, by name
	saving   map[string]chan struct{}              // containers that are being saved; closed at the end
	received map[holdfast.SessionKey]receivedImage
	starts   map[string]restoring // by container
}

// restoring is a container that is about to be started from an image.
type restoring struct {
	at    time.Time
	bytes int64
}

// receivedImage is an image on this node that its session has not been restored
// from yet.
type receivedImage struct {
	Label
	dir string
	at  time.Time
}

// New checks the runtime, removes what an earlier process left in the directories
// of the node, and returns a Mover. Without Suspended's directory or key it moves
// sessions but suspends none.
func New(o Options) (*Mover, error) {
	m := &Mover{
		o: o, runsc: runsc.Runtime{Program: o.Runsc, Images: o.Staged}, work: o.Staged + "." + string(o.Node),
		rates: newRates(o.RatesFile, o.Metrics, o.Log), metrics: newMetrics(o.Metrics),
		received: map[holdfast.SessionKey]receivedImage{}, starts: map[string]restoring{},
		copies: map[holdfast.SessionKey]receivedImage{}, saving: map[string]chan struct{}{},
		space: newReservations(), suspendeds: newSuspendedIndex(), seen: seen{file: o.SeenFile},
	}
	if o.Spill != "" {
		m.spill = filepath.Join(o.Spill, "images."+string(o.Node))
	}
	if err := os.MkdirAll(m.runsc.Images, 0o700); err != nil {
		return nil, fmt.Errorf("moving.staged: %w", err)
	}
	if err := m.runsc.Check(); err != nil {
		return nil, fmt.Errorf("moving: %w", err)
	}
	// This agent uses only the complete checkpoints of an earlier one. Containers that were
	// not ready are removed with their staged images, and images that were being received
	// are incomplete.
	if err := m.runsc.Sweep(); err != nil {
		return nil, fmt.Errorf("moving.staged: %w", err)
	}
	dirs := []string{m.work}
	if m.spill != "" {
		dirs = append(dirs, m.spill)
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("moving: %w", err)
		}
	}
	var err error
	if m.completes, err = newCompletes(dirs...); err != nil {
		return nil, fmt.Errorf("moving: %w", err)
	}
	if err := m.runsc.Install(o.Runtime); err != nil {
		return nil, err
	}
	if m.images, m.noImages = openSuspendedStore(o); m.noImages != nil {
		m.dropComplete()
		o.Log.Warn("sessions cannot be suspended on this node", "err", m.noImages, "hint", holdfast.HintOf(m.noImages))
	}
	return m, nil
}

// Join gives the Mover the other nodes. It is called before any session is saved.
func (m *Mover) Join(p Peers) { m.peers = p }

// Save implements session.Mover.
func (m *Mover) Save(ctx context.Context, d Departing) (int64, error) {
	o := d.Owner
	if err := m.peers.CanSend(o.Key, o.Epoch); err != nil {
		return 0, err
	}
	dir, size, err := m.checkpoint(ctx, d)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	begun := time.Now()
	label := Label{Key: o.Key, Epoch: o.Epoch, Template: o.Template, TakenAt: begun.UTC(), WakeAt: o.WakeAt}
	err = m.rates.time(&m.rates.rates.Send, size, func() error {
		return m.peers.SendImage(ctx, o.Key, o.Epoch, func(w io.Writer) error { return Pack(m.metrics.count(w), label, dir) })
	})
	if err == nil {
		m.metrics.observe(partStream, begun)
	}
	return size, err
}

// checkpoint saves a container and ends it. It returns the directory of the image, in memory
// or on disk, and the bytes of its files.
func (m *Mover) checkpoint(ctx context.Context, d Departing) (dir string, size int64, err error) {
	begun := time.Now()
	if dir, size, err = m.save(ctx, d, m.runsc.Checkpoint); err != nil {
		return "", 0, err
	}
	m.metrics.observe(partCheckpoint, begun)
	done, err := m.completes.mark(dir, d.Owner)
	if err != nil {
		return "", 0, errors.Join(err, os.RemoveAll(dir))
	}
	return done, size, nil
}

// save saves a container into a new directory, in memory or on disk. It returns the directory
// and the bytes of its files. One save of a container follows another.
func (m *Mover) save(ctx context.Context, d Departing, saveTo func(ctx context.Context, id string, init int, dir string) error) (dir string, size int64, err error) {
	done, err := m.beginSave(ctx, d.Owner.ContainerID)
	if err != nil {
		return "", 0, err
	}
	defer done()
	at, line := m.work, &m.rates.rates.Save
	if d.OnDisk {
		at, line = m.spill, &m.rates.rates.Spill
	}
	if dir, err = os.MkdirTemp(at, "save-*"); err != nil {
		return "", 0, err
	}
	err = m.rates.timeSized(line, func() (int64, error) {
		if err := saveTo(ctx, d.Owner.ContainerID, d.Target.Pid(), dir); err != nil {
			return 0, err
		}
		size, err = sizeOf(dir)
		return size, err
	})
	if err != nil {
		return "", 0, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, size, nil
}

// beginSave waits until no other save of the container is under way. done ends this one.
func (m *Mover) beginSave(ctx context.Context, container string) (done func(), err error) {
	for {
		m.mu.Lock()
		other := m.saving[container]
		if other == nil {
			mine := make(chan struct{})
			m.saving[container] = mine
			m.mu.Unlock()
			return func() {
				m.mu.Lock()
				defer m.mu.Unlock()
				delete(m.saving, container)
				close(mine)
			}, nil
		}
		m.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another copy of its memory: %w", ctx.Err())
		}
	}
}

// Receive reads an image that another node sends, for the session's claim on this
// node. It is a fleet.Receive.
func (m *Mover) Receive(_ context.Context, image io.Reader, expected func(holdfast.SessionKey, holdfast.Epoch) error) error {
	dir, err := os.MkdirTemp(m.work, "got-*")
	if err != nil {
		return err
	}
	inner := filepath.Join(dir, "image")
	l, err := Unpack(image, inner, m.o.MaxImage, func(l Label) error { return expected(l.Key, l.Epoch) })
	if err == nil { // the session may have been given up during the transfer
		err = expected(l.Key, l.Epoch)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	m.mu.Lock()
	old := m.received[l.Key]
	m.received[l.Key] = receivedImage{l, dir, time.Now()}
	m.mu.Unlock()
	m.remove(old)
	time.AfterFunc(receivedLifetime, m.expire)
	return nil
}

func (m *Mover) remove(image receivedImage) {
	if image.dir == "" {
		return
	}
	if err := os.RemoveAll(image.dir); err != nil {
		m.o.Log.Warn("the image of a session cannot be removed", "session", image.Key, "err", err)
	}
}

// expire removes received images whose session was not claimed in time.
func (m *Mover) expire() {
	m.mu.Lock()
	var old []receivedImage
	for key, image := range m.received {
		if time.Since(image.at) >= receivedLifetime {
			old = append(old, image)
			delete(m.received, key)
		}
	}
	m.mu.Unlock()
	for _, image := range old {
		m.o.Log.Warn("the memory of a session is lost: the session was not claimed on this node in time", "session", image.Key, "epoch", image.Epoch)
		m.remove(image)
	}
}

// Stage implements session.Mover.
func (m *Mover) Stage(ctx context.Context, o *holdfast.Owner, left *holdfast.Suspended, container string) (bool, error) {
	m.mu.Lock()
	image, ok := m.received[o.Key]
	delete(m.received, o.Key) // an image is used at most once, even if Stage fails
	m.mu.Unlock()
	if left != nil { // a received image arrived too late: it is older than the suspended one
		m.remove(image)
		var err error
		if image, err = m.takeSuspended(ctx, *o, *left); err != nil {
			return false, err
		}
	} else if !ok {
		return false, nil
	}
	defer m.remove(image)
	if left == nil {
		follows, err := m.follows(ctx, o.Key, image.Epoch, o.Epoch)
		if err == nil && !follows {
			err = fmt.Errorf("the image is of epoch %d, which is not the epoch before %d", image.Epoch, o.Epoch)
		}
		if err != nil {
			return false, err
		}
		o.WakeAt = image.WakeAt
	}
	if err := m.runsc.Stage(container, filepath.Join(image.dir, "image")); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.starts[container] = restoring{time.Now(), image.Bytes}
	return true, nil
}

// How long, and how often, the store is asked again whether an image is of the epoch before a
// session's. Meanwhile a store may elect a leader, as when the drained node was one of its members.
const (
	followsLimit = 30 * time.Second
	followsPause = 100 * time.Millisecond
)

// follows asks the store whether next is the epoch after before.
func (m *Mover) follows(ctx context.Context, key holdfast.SessionKey, before, next holdfast.Epoch) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, followsLimit)
	defer cancel()
	for {
		ok, err := m.o.Store.Follows(ctx, key, before, next)
		if !errors.Is(err, holdfast.ErrStore) {
			return ok, err
		}
		if tasks.Sleep(ctx, followsPause) != nil {
			return false, err
		}
	}
}

// Used implements session.Mover.
func (m *Mover) Used(container string) bool { return m.runsc.Used(container) }

// Restage implements session.Mover.
func (m *Mover) Restage(from, to string) error {
	if err := m.runsc.Restage(from, to); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.starts[to] = restoring{time.Now(), m.starts[from].bytes}
	delete(m.starts, from)
	return nil
}

// RestoreHeld implements session.Mover.
func (m *Mover) RestoreHeld(ctx context.Context, container string, init int) error {
	return m.runsc.RestoreHeld(ctx, container, init)
}

// Hold makes the engine's start of a created container leave its sandbox waiting for
// RestoreHeld, or for the container's end. Any goroutine may call it.
func (m *Mover) Hold(container string) error { return m.runsc.Hold(container) }

// Received reports whether Stage would find an image of the session that another node has sent.
// Any goroutine may call it.
func (m *Mover) Received(key holdfast.SessionKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.received[key]
	return ok
}

// Unstage implements session.Mover.
func (m *Mover) Unstage(container string, restored bool) {
	m.mu.Lock()
	r := m.starts[container]
	delete(m.starts, container)
	m.mu.Unlock()
	if err := m.runsc.Unstage(container); err != nil {
		m.o.Log.Warn("the image of a session cannot be removed", "container", container, "err", err)
	}
	if restored {
		m.rates.learn(&m.rates.rates.Restore, r.bytes, time.Since(r.at), 1)
	}
}
