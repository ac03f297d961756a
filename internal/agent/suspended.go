package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/control/config"
	"holdfast/internal/platform/keyfile"
	"holdfast/internal/sessions/hook"
	"holdfast/internal/sessions/move"
	"holdfast/internal/sessions/session"
)

const (
	// tendShelf is how often what is kept is looked through.
	tendShelf = time.Minute
	// unknownImage is how long an image may be unknown to the store: its session
	// is given up right after it was put.
	unknownImage = 15 * time.Minute
	// lateNote is how long what is in the store outlives its image's time, so that
	// the node that has the image comes first.
	lateNote = time.Hour
	// takeImage bounds the way of an image here.
	takeImage = 2 * time.Minute
)

// shelf keeps the memory of suspended sessions.
type shelf struct {
	*move.Shelf
	bounds move.Bounds
	dir    string
	shared bool // every node has what is on it
	remote bool // it is kept by the operator's commands
	drops  *prometheus.CounterVec
}

// openShelf opens where the memory of suspended sessions is kept.
func (a *Agent) openShelf() (*shelf, error) {
	c := a.cfg.Moving.Suspended
	key, err := imageKey(a.cfg)
	if err != nil {
		return nil, err
	}
	o := move.ShelfOptions{Dir: a.cfg.SuspendedDir(), Owner: a.node, Most: int64(a.cfg.Moving.MaxImage)}
	if c.Remote() {
		o.Remote = remoteImages{c, a.opt.Hook}
	}
	s := &shelf{
		bounds: move.Bounds{Age: c.Keep, Space: int64(c.Space), Grace: unknownImage},
		dir:    o.Dir, shared: c.Shared || c.Remote(), remote: c.Remote(),
	}
	if s.Shelf, err = move.OpenShelf(o, key); err != nil {
		return nil, err
	}
	s.register(a.metrics)
	return s, nil
}

// register shows what is kept as metrics.
func (s *shelf) register(reg prometheus.Registerer) {
	kept := func(of func(move.Kept) float64) func() float64 {
		return func() (sum float64) {
			if s.Shelf == nil {
				return 0
			}
			all, _ := s.List() // what cannot be read counts as nothing
			for _, k := range all {
				sum += of(k)
			}
			return sum
		}
	}
	s.drops = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "holdfast_suspended_dropped_total",
		Help: "Images of suspended sessions that were dropped before anybody came for them, by reason (expired, space, unknown: nobody knew of it, stopped: by hand, superseded: an agent of an older version has claimed the session).",
	}, []string{"reason"})
	for _, why := range []string{move.TooOld, move.TooMuch, move.Unknown, stoppedByHand, superseded} {
		s.drops.WithLabelValues(why)
	}
	reg.MustRegister(s.drops,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "holdfast_suspended_images", Help: "Images of suspended sessions in this node's directory.",
		}, kept(func(move.Kept) float64 { return 1 })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "holdfast_suspended_bytes", Help: "Bytes of the images of suspended sessions in this node's directory, sealed.",
		}, kept(func(k move.Kept) float64 { return float64(k.Bytes) })))
}

// Why an image is dropped beside those reasons that package move has.
const (
	stoppedByHand = "stopped"    // somebody has stopped its session
	superseded    = "superseded" // its session has lived since
)

// imageKey is the key that images are sealed with. Where the configuration names no
// file it is made.
func imageKey(c config.Config) (string, error) {
	file := c.ImageKeyFile()
	text, err := keyfile.ReadSecret(file)
	if errors.Is(err, fs.ErrNotExist) && c.Moving.Suspended.KeyFile == "" {
		return makeImageKey(file)
	}
	if err != nil {
		return "", fmt.Errorf("moving.suspended.key_file: %w", err)
	}
	for _, words := range keyfile.Lines(string(text)) {
		return words[0], nil
	}
	return "", holdfast.WithHint(fmt.Errorf("moving.suspended.key_file: %s has no key", file), "`age-keygen -o FILE` makes one")
}

func makeImageKey(file string) (string, error) {
	key, err := move.NewKey()
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", fmt.Errorf("make a key for images: %w", err)
	}
	_, err = f.WriteString(key + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", fmt.Errorf("make a key for images: %w", errors.Join(err, os.Remove(file)))
	}
	return key, nil
}

// remoteImages keeps images by the operator's commands.
type remoteImages struct {
	c    config.Suspended
	hook hook.Runner
}

// Put implements move.Remote.
func (r remoteImages) Put(ctx context.Context, name, file string) error {
	return r.run(ctx, "put", r.c.Put, name, file)
}

// Get implements move.Remote.
func (r remoteImages) Get(ctx context.Context, name, file string) error {
	return r.run(ctx, "get", r.c.Get, name, file)
}

// Drop implements move.Remote.
func (r remoteImages) Drop(ctx context.Context, name string) error {
	return r.run(ctx, "drop", r.c.Drop, name, "")
}

// run runs one of the commands; no shell sees it.
func (r remoteImages) run(ctx context.Context, what string, args []string, name, file string) error {
	ctx, cancel := context.WithTimeout(ctx, r.c.Timeout)
	defer cancel()
	fill := strings.NewReplacer("{name}", name, "{file}", file)
	var c hook.Command
	for _, a := range args {
		c.Args = append(c.Args, fill.Replace(a))
	}
	if got := r.hook.Run(ctx, c); got.Err != nil {
		return fmt.Errorf("moving.suspended.%s: %w: %s", what, got.Err, strings.TrimSpace(got.Output))
	}
	return nil
}

// Reserve implements session.Mover. What is reserved and being written counts twice for
// that long: rather one too few is suspended than two half.
func (m *mover) Reserve(l session.Leaving) (session.Leaving, func(), error) {
	if m.shelf == nil {
		return l, nil, m.noShelf
	}
	n, err := m.runsc.Size(l.Owner.ContainerID, l.Target.Pid())
	if err != nil {
		return l, nil, err
	}
	if n > m.most {
		return l, nil, fmt.Errorf("it has %.1f MB, and an image may have %.1f MB", float64(n)/1e6, float64(m.most)/1e6)
	}
	l.Bytes = n + imageMargin
	release, onDisk, err := m.reserve(l.Bytes)
	l.OnDisk = onDisk
	return l, release, err
}

// rooms are what is reserved of the room for images.
type rooms struct {
	mu    sync.Mutex
	taken map[uint64]int64 // bytes, by device
}

func newRooms() *rooms { return &rooms{taken: map[uint64]int64{}} }

// free is how many bytes of images there is room for in a directory, beside those that
// are reserved.
func (r *rooms) free(dir string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.freeLocked(dir)
}

func (r *rooms) freeLocked(dir string) int64 {
	return max(0, roomIn(dir)-r.taken[deviceOf(dir)])
}

// reserve takes room for an image, in memory or on disk, and for it on the shelf, until
// release is called.
func (m *mover) reserve(bytes int64) (release func(), onDisk bool, err error) {
	r := m.rooms
	r.mu.Lock()
	defer r.mu.Unlock()
	at := m.work
	if onDisk = bytes > r.freeLocked(at); onDisk {
		at = m.spill
	}
	if bytes > r.freeLocked(at) {
		return nil, onDisk, fmt.Errorf("there is no room for an image of %.1f MB in moving.staged or moving.spill", float64(bytes)/1e6)
	}
	staged, kept := deviceOf(at), deviceOf(m.shelf.dir) // one and the same, maybe
	r.taken[staged] += bytes
	if bytes > min(m.shelf.bounds.Space, r.freeLocked(m.shelf.dir)) {
		r.taken[staged] -= bytes
		return nil, onDisk, fmt.Errorf("there is no room for an image of %.1f MB in moving.suspended", float64(bytes)/1e6)
	}
	r.taken[kept] += bytes
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.taken[staged] -= bytes
		r.taken[kept] -= bytes
	}, onDisk, nil
}

// deviceOf is the file system that a directory is on; 0 where it cannot be known, and
// where there is no room either.
func deviceOf(dir string) uint64 {
	var st unix.Stat_t
	if dir == "" || unix.Stat(dir, &st) != nil {
		return 0
	}
	return st.Dev
}

// Suspend implements session.Mover.
func (m *mover) Suspend(ctx context.Context, l session.Leaving) (s holdfast.Suspended, err error) {
	if m.shelf == nil {
		return s, m.noShelf
	}
	dir, size, err := m.checkpoint(ctx, l)
	if err != nil {
		return s, err
	}
	defer os.RemoveAll(dir)
	defer m.pace.keep()
	label := move.Label{Key: l.Owner.Key, Epoch: l.Owner.Epoch, Template: l.Owner.Template, TakenAt: time.Now().UTC()}
	if err := m.put(ctx, label, size, dir); err != nil {
		return s, err
	}
	m.asleep.add(label.Key, label.Epoch)
	return holdfast.Suspended{
		Key: label.Key, Epoch: label.Epoch, Node: m.node, Shared: m.shelf.shared, Template: label.Template,
		TakenAt: label.TakenAt, Until: label.TakenAt.Add(m.shelf.bounds.Age), Bytes: size,
	}, nil
}

// put seals an image, after it has made room for it.
func (m *mover) put(ctx context.Context, label move.Label, size int64, dir string) error {
	if !m.shelf.remote { // whose space nobody watches
		m.putting.Lock()
		defer m.putting.Unlock()
		m.makeRoom(ctx, size)
	}
	return m.shelf.Put(ctx, label, dir)
}

// takeLeft gets the image that a session's life before has left, wherever it is,
// into a new directory.
func (m *mover) takeLeft(ctx context.Context, o holdfast.Owner, left holdfast.Suspended) (a arrived, err error) {
	ctx, cancel := context.WithTimeout(ctx, takeImage)
	defer cancel()
	if a.dir, err = os.MkdirTemp(m.work, "left-*"); err != nil {
		return a, err
	}
	inner := filepath.Join(a.dir, "image")
	switch {
	case left.Shared || left.Node == m.node:
		if m.shelf == nil {
			err = m.noShelf
			break
		}
		a.Label, err = m.shelf.Take(ctx, left.Key, left.Epoch, inner)
	case m.fleet == nil:
		err = fmt.Errorf("node %s has it, and this node asks no other", left.Node)
	default:
		err = m.fleet.TakeImage(ctx, left.Node, left.Key, left.Epoch, o.Epoch, func(r io.Reader) (err error) {
			a.Label, err = move.Unpack(r, inner, m.most, func(l move.Label) error {
				if l.Key != left.Key || l.Epoch != left.Epoch {
					return fmt.Errorf("%w: it is of session %s at epoch %d", move.ErrTorn, l.Key, l.Epoch)
				}
				return nil
			})
			return err
		})
	}
	if err != nil {
		return a, errors.Join(err, os.RemoveAll(a.dir))
	}
	return a, nil
}

// give writes an image to another node, for the fleet.
func (m *mover) give(ctx context.Context, key holdfast.SessionKey, epoch holdfast.Epoch, w io.Writer) error {
	if m.shelf == nil {
		return fmt.Errorf("%w: %w", holdfast.ErrNotFound, m.noShelf)
	}
	return m.shelf.Send(ctx, key, epoch, w)
}

// prefer is the node that has the image of a suspended session, for the fleet.
func (m *mover) prefer(ctx context.Context, key holdfast.SessionKey) holdfast.NodeID {
	s, _, err := suspendedOne(ctx, m.store, key)
	if err != nil || s.Shared {
		return ""
	}
	return s.Node
}
