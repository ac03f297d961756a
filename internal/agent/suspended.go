package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/config"
	"holdfast/internal/hook"
	"holdfast/internal/keyfile"
	"holdfast/internal/move"
	"holdfast/internal/session"
	"holdfast/internal/store"
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
		dir:    o.Dir, shared: c.Shared || c.Remote(),
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
		Help: "Images of suspended sessions that were dropped before anybody came for them, by reason (expired, space, unknown: nobody knew of it, stopped: by hand).",
	}, []string{"reason"})
	for _, why := range []string{move.TooOld, move.TooMuch, move.Unknown, stoppedByHand} {
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

// stoppedByHand is why an image is dropped whose session somebody has stopped.
const stoppedByHand = "stopped"

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

// CanSuspend implements session.Mover.
func (m *mover) CanSuspend(l session.Leaving) error {
	if m.shelf == nil {
		return m.noShelf
	}
	_, err := m.sized(l)
	return err
}

// sized says how big a session's image may be and where there is room for it, or
// why there is none.
func (m *mover) sized(l session.Leaving) (session.Leaving, error) {
	n, err := m.runsc.Size(l.Owner.ContainerID, l.Target.Pid())
	if err != nil {
		return l, err
	}
	l.Bytes = n + imageMargin
	l.OnDisk = l.Bytes > roomIn(m.work)
	switch {
	case n > m.most:
		return l, fmt.Errorf("it has %.1f MB, and an image may have %.1f MB", float64(n)/1e6, float64(m.most)/1e6)
	case l.OnDisk && l.Bytes > roomIn(m.spill):
		return l, fmt.Errorf("there is no room for an image of %.1f MB in moving.staged or moving.spill", float64(l.Bytes)/1e6)
	case l.Bytes > min(m.shelf.bounds.Space, roomIn(m.shelf.dir)):
		return l, fmt.Errorf("there is no room for an image of %.1f MB in moving.suspended", float64(l.Bytes)/1e6)
	}
	return l, nil
}

// Suspend implements session.Mover.
func (m *mover) Suspend(ctx context.Context, l session.Leaving) (s holdfast.Suspended, err error) {
	if m.shelf == nil {
		return s, m.noShelf
	}
	if l, err = m.sized(l); err != nil {
		return s, err
	}
	dir, size, err := m.checkpoint(ctx, l)
	if err != nil {
		return s, err
	}
	defer os.RemoveAll(dir)
	defer m.pace.keep()
	m.makeRoom(ctx, size)
	label := move.Label{Key: l.Owner.Key, Epoch: l.Owner.Epoch, Template: l.Owner.Template, TakenAt: time.Now().UTC()}
	if err := m.shelf.Put(ctx, label, dir); err != nil {
		return s, err
	}
	return holdfast.Suspended{
		Key: label.Key, Epoch: label.Epoch, Node: m.node, Shared: m.shelf.shared, Template: label.Template,
		TakenAt: label.TakenAt, Until: label.TakenAt.Add(m.shelf.bounds.Age), Bytes: size,
	}, nil
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

// suspendedOne is a suspended session, and its note. holdfast.ErrNotFound.
func suspendedOne(ctx context.Context, s store.Store, key holdfast.SessionKey) (holdfast.Suspended, store.Note, error) {
	all, err := s.ListNotes(ctx, store.SuspendedNotes+string(key))
	if err != nil {
		return holdfast.Suspended{}, store.Note{}, err
	}
	for _, n := range all {
		if n.Name != store.SuspendedNotes+string(key) {
			continue
		}
		var one holdfast.Suspended
		if err := json.Unmarshal(n.Value, &one); err != nil {
			return one, n, fmt.Errorf("suspended session %s: %w", key, err)
		}
		return one, n, nil
	}
	return holdfast.Suspended{}, store.Note{}, holdfast.ErrNotFound
}

// suspendedNote is a suspended session as the store has it.
type suspendedNote struct {
	holdfast.Suspended
	note store.Note
}

// suspendedAll are all suspended sessions, by key. What cannot be read is left out.
func suspendedAll(ctx context.Context, s store.Store) ([]suspendedNote, error) {
	notes, err := s.ListNotes(ctx, store.SuspendedNotes)
	if err != nil {
		return nil, fmt.Errorf("listing suspended sessions: %w", err)
	}
	var out []suspendedNote
	for _, n := range notes {
		one := suspendedNote{note: n}
		if json.Unmarshal(n.Value, &one.Suspended) == nil {
			out = append(out, one)
		}
	}
	return out, nil
}

// Run drops images that are too old, too many, or of nobody, until ctx is done.
func (m *mover) Run(ctx context.Context) error {
	tick := time.NewTicker(tendShelf)
	defer tick.Stop()
	for m.shelf != nil {
		m.tend(ctx, time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// tend drops what there is no use for at a moment.
func (m *mover) tend(ctx context.Context, now time.Time) {
	m.collect(ctx, 0, now)
	all, err := suspendedAll(ctx, m.store)
	if err != nil {
		return // the next time
	}
	for _, s := range all {
		own := s.Node == m.node
		if own && now.After(s.Until) || now.After(s.Until.Add(lateNote)) {
			m.forget(ctx, s, move.TooOld)
		}
	}
}

// makeRoom drops the oldest images where an image of so many bytes would be too
// much.
func (m *mover) makeRoom(ctx context.Context, bytes int64) { m.collect(ctx, bytes, time.Now()) }

func (m *mover) collect(ctx context.Context, more int64, now time.Time) {
	all, err := m.shelf.List()
	if err != nil {
		m.log.Warn("images of suspended sessions cannot be looked through", "err", err)
		return
	}
	notes, err := suspendedAll(ctx, m.store)
	noted := map[holdfast.SessionKey]suspendedNote{}
	for _, n := range notes {
		noted[n.Key] = n
	}
	known := func(k move.Kept) bool { return err != nil || noted[k.Key].Epoch == k.Epoch }
	for _, d := range move.Surplus(all, m.shelf.bounds, more, now, known) {
		s, ok := noted[d.Key]
		if !ok || s.Epoch != d.Epoch {
			s = suspendedNote{Suspended: holdfast.Suspended{Key: d.Key, Epoch: d.Epoch, Node: m.node}}
		}
		m.forget(ctx, s, d.Why)
	}
}

// forget drops a suspended session: from the store first, so that nobody comes for an
// image that is gone, and then its image, where this node can get at it.
func (m *mover) forget(ctx context.Context, s suspendedNote, why string) {
	err := error(nil)
	if s.note.Name != "" {
		err = m.store.DropNote(ctx, s.note)
	}
	if err == nil && m.shelf != nil && (s.Shared || s.Node == m.node) {
		if err = m.shelf.Drop(ctx, s.Key, s.Epoch); err == nil {
			m.shelf.drops.WithLabelValues(why).Inc()
		}
	}
	if err != nil {
		m.log.Warn("the memory of a suspended session stays behind", "session", s.Key, "epoch", s.Epoch, "err", err)
		return
	}
	m.log.Info("the memory of a suspended session is dropped", "session", s.Key, "epoch", s.Epoch, "reason", why)
}
