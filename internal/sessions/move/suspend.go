package move

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"holdfast"
	"holdfast/internal/platform/keyfile"
	"holdfast/internal/platform/metric"
	"holdfast/internal/sessions/hook"
)

const (
	// sweepInterval is how often the stored images are checked.
	sweepInterval = time.Minute
	// unknownGrace is how long an image may be missing in the store: the session's
	// record is written right after its image.
	unknownGrace = 15 * time.Minute
	// recordGrace is how long the record of a suspended session outlives its image,
	// so that the node that has the image removes both first.
	recordGrace = time.Hour
	// takeTimeout limits the transfer of a suspended session's image to this node.
	takeTimeout = 2 * time.Minute
)

// SuspendOptions configure where the memory of suspended sessions is kept.
type SuspendOptions struct {
	Dir   string
	Keep  time.Duration // lifetime of an image
	Space int64         // bytes of all images
	// Shared means that Dir is the same on every node.
	Shared  bool
	KeyFile string // of the age key that images are encrypted with
	// MakeKey creates KeyFile if it is missing.
	MakeKey bool
	// Put, Get and Drop are commands that keep the encrypted files instead of Dir.
	// "{name}" and "{file}" in their arguments are replaced. Empty: Dir keeps them.
	Put, Get, Drop []string
	Timeout        time.Duration // of one command
}

func (o SuspendOptions) remote() bool { return len(o.Put)+len(o.Get)+len(o.Drop) > 0 }

// suspendedStore is the image store of suspended sessions.
type suspendedStore struct {
	*ImageStore
	limits Limits
	shared bool // every node can read it
	drops  *prometheus.CounterVec
}

func openSuspendedStore(o Options) (*suspendedStore, error) {
	c := o.Suspended
	key, err := imageKey(c)
	if err != nil {
		return nil, err
	}
	so := StoreOptions{Dir: c.Dir, Owner: o.Node, MaxImage: o.MaxImage}
	if c.remote() {
		so.Remote = commands{c, o.Hooks}
	}
	s := &suspendedStore{limits: Limits{Age: c.Keep, Space: c.Space, Grace: unknownGrace}, shared: c.Shared || c.remote()}
	if s.ImageStore, err = OpenStore(so, key); err != nil {
		return nil, err
	}
	s.register(o.Metrics)
	return s, nil
}

// register exports the stored images as metrics.
func (s *suspendedStore) register(reg prometheus.Registerer) {
	sum := func(named bool, of func(StoredImage) float64) func() float64 {
		return func() (total float64) {
			if s.ImageStore == nil {
				return 0
			}
			all, _ := s.List() // an unreadable directory counts as empty
			suspended, snapshots := splitSnapshots(all)
			if named {
				suspended = snapshots
			}
			for _, image := range suspended {
				total += of(image)
			}
			return total
		}
	}
	one, bytes := func(StoredImage) float64 { return 1 }, func(i StoredImage) float64 { return float64(i.Bytes) }
	r := metric.Registry{Registerer: reg}
	s.drops = r.CounterVec("holdfast_suspended_dropped_total",
		"Images of suspended sessions that were removed unused, by reason (expired; space; unknown: no record in the store refers to it; stopped: the session was stopped; superseded: an agent of an older version has claimed the session).", "reason")
	metric.Start(s.drops, Expired, NoSpace, Unknown, Stopped, superseded)
	metric.GaugeFunc(r, "holdfast_suspended_images", "Images of suspended sessions in the directory of this node.",
		sum(false, one))
	metric.GaugeFunc(r, "holdfast_snapshots", "Snapshots of sessions in the directory of this node.", sum(true, one))
	metric.GaugeFunc(r, "holdfast_snapshot_bytes", "Size of the encrypted snapshots in the directory of this node, in bytes.", sum(true, bytes))
	metric.GaugeFunc(r, "holdfast_suspended_bytes", "Size of the encrypted images of suspended sessions in the directory of this node, in bytes.",
		sum(false, bytes))
}

// RegisterMetrics registers the metrics of this package without a Mover, for the
// page of all metrics.
func RegisterMetrics(reg prometheus.Registerer, o Options) {
	newMetrics(reg)
	newRates(o.RatesFile, reg, o.Log)
	(&suspendedStore{}).register(reg)
}

// Reasons for removing a suspended session beside those of Surplus.
const (
	Stopped    = "stopped"    // the session was stopped
	superseded = "superseded" // the session has been claimed since
)

// imageKey reads the key that images are encrypted with, or creates it.
func imageKey(o SuspendOptions) (string, error) {
	text, err := keyfile.ReadSecret(o.KeyFile)
	if errors.Is(err, fs.ErrNotExist) && o.MakeKey {
		return makeImageKey(o.KeyFile)
	}
	if err != nil {
		return "", fmt.Errorf("moving.suspended.key_file: %w", err)
	}
	for _, words := range keyfile.Lines(string(text)) {
		return words[0], nil
	}
	return "", holdfast.WithHint(fmt.Errorf("moving.suspended.key_file: %s has no key", o.KeyFile), "create one with `age-keygen -o FILE`")
}

func makeImageKey(file string) (string, error) {
	key, err := NewKey()
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

// commands is a Remote that runs the operator's commands.
type commands struct {
	o    SuspendOptions
	hook hook.Runner
}

// Put implements Remote.
func (c commands) Put(ctx context.Context, name, file string) error {
	return c.run(ctx, "put", c.o.Put, name, file)
}

// Get implements Remote.
func (c commands) Get(ctx context.Context, name, file string) error {
	return c.run(ctx, "get", c.o.Get, name, file)
}

// Drop implements Remote.
func (c commands) Drop(ctx context.Context, name string) error {
	return c.run(ctx, "drop", c.o.Drop, name, "")
}

// run runs one command without a shell.
func (c commands) run(ctx context.Context, what string, args []string, name, file string) error {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	fill := strings.NewReplacer("{name}", name, "{file}", file)
	var command hook.Command
	for _, a := range args {
		command.Args = append(command.Args, fill.Replace(a))
	}
	if got := c.hook.Run(ctx, command); got.Err != nil {
		return fmt.Errorf("moving.suspended.%s: %w: %s", what, got.Err, strings.TrimSpace(got.Output))
	}
	return nil
}

// Reserve implements session.Mover. An image that is being written counts twice: as
// reserved and as used space. The estimate is thus too low rather than too high.
func (m *Mover) Reserve(d Departing) (Departing, func(), error) {
	if m.images == nil {
		return d, nil, m.noImages
	}
	n, err := m.runsc.Size(d.Owner.ContainerID, d.Target.Pid())
	if err != nil {
		return d, nil, err
	}
	if n > m.o.MaxImage {
		return d, nil, fmt.Errorf("the session has %.1f MB of memory, the limit of an image is %.1f MB", float64(n)/1e6, float64(m.o.MaxImage)/1e6)
	}
	d.Bytes = n + imageMargin
	release, onDisk, err := m.reserve(d.Bytes)
	d.OnDisk = onDisk
	return d, release, err
}

// Suspend implements session.Mover.
func (m *Mover) Suspend(ctx context.Context, d Departing) (s holdfast.Suspended, err error) {
	if m.images == nil {
		return s, m.noImages
	}
	dir, size, err := m.checkpoint(ctx, d)
	if err != nil {
		return s, err
	}
	defer os.RemoveAll(dir)
	label := Label{Key: d.Owner.Key, Epoch: d.Owner.Epoch, Template: d.Owner.Template, TakenAt: time.Now().UTC()}
	if err := m.putSuspended(ctx, label, size, dir); err != nil {
		return s, err
	}
	m.suspendeds.add(label.Key, label.Epoch)
	return m.suspended(label, size), nil
}

// suspended returns the note of a session whose image is stored.
func (m *Mover) suspended(l Label, bytes int64) holdfast.Suspended {
	return holdfast.Suspended{
		Key: l.Key, Epoch: l.Epoch, Node: m.o.Node, Shared: m.images.shared, Template: l.Template,
		TakenAt: l.TakenAt, Until: l.TakenAt.Add(m.images.limits.Age), Bytes: bytes,
	}
}

// Saved implements session.Mover. A stored image is complete, because an unfinished one
// has another name. The images of a Remote are not listed.
func (m *Mover) Saved(ctx context.Context, o holdfast.Owner) (s holdfast.Suspended, ok bool) {
	if m.images == nil {
		return s, false
	}
	all, err := []StoredImage(nil), error(nil)
	if m.images.o.Remote == nil {
		all, err = m.images.List()
	}
	i := slices.IndexFunc(all, func(i StoredImage) bool { return i.Key == o.Key && i.Epoch == o.Epoch })
	if err == nil && i >= 0 {
		label := Label{Key: o.Key, Epoch: o.Epoch, Template: o.Template, TakenAt: all[i].TakenAt.UTC()}
		s, ok = m.suspended(label, all[i].Bytes), true
	} else {
		s, ok = m.storeComplete(ctx, o)
	}
	if ok {
		m.suspendeds.add(o.Key, o.Epoch)
	}
	return s, ok
}

// putSuspended stores an image after it has freed space for it. The space of a
// remote store is not limited.
func (m *Mover) putSuspended(ctx context.Context, label Label, size int64, dir string) error {
	if m.images.o.Remote == nil {
		m.storing.Lock()
		defer m.storing.Unlock()
		m.collect(ctx, size, time.Now())
	}
	return m.images.Put(ctx, label, dir)
}

// takeSuspended gets the image of a suspended session into a new directory, from
// the node or the store that has it.
func (m *Mover) takeSuspended(ctx context.Context, o holdfast.Owner, left holdfast.Suspended) (image receivedImage, err error) {
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	if image.dir, err = os.MkdirTemp(m.work, "left-*"); err != nil {
		return image, err
	}
	inner := filepath.Join(image.dir, "image")
	switch {
	case left.From != nil:
		image.Label, err = m.openSnapshot(ctx, o, *left.From, inner)
	case left.Shared || left.Node == m.o.Node:
		if m.images == nil {
			err = m.noImages
			break
		}
		if left.Node == m.o.Node {
			err = m.suspendeds.follows(ctx, left.Key, left.Epoch, left.Last(), o.Epoch)
		}
		if err == nil {
			image.Label, err = m.images.Take(ctx, left.Key, left.Epoch, inner)
		}
	case m.peers == nil:
		err = fmt.Errorf("node %s has the image, and this node is not part of a fleet", left.Node)
	default:
		err = m.peers.TakeImage(ctx, left, o.Epoch, func(r io.Reader) (err error) {
			image.Label, err = Unpack(r, inner, m.o.MaxImage, matches(left.Key, left.Epoch))
			return err
		})
	}
	if err != nil {
		return image, errors.Join(err, os.RemoveAll(image.dir))
	}
	return image, nil
}

// Keep implements session.Mover.
func (m *Mover) Keep(ctx context.Context, o holdfast.Owner, left holdfast.Suspended) (_ holdfast.Suspended, taken bool, err error) {
	switch {
	case m.images == nil:
		return left, false, m.noImages
	case m.peers == nil || left.Shared || left.Node == m.o.Node:
		return left, false, fmt.Errorf("the image of epoch %d is not on another node: %w", left.Epoch, holdfast.ErrNotFound)
	}
	release, _, err := m.reserve(left.Bytes + imageMargin) // it is unpacked in memory
	if err != nil {
		return left, false, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	dir, err := os.MkdirTemp(m.work, "keep-*")
	if err != nil {
		return left, false, err
	}
	defer os.RemoveAll(dir)
	inner := filepath.Join(dir, "image")
	var label Label
	err = m.peers.TakeImage(ctx, left, o.Epoch, func(r io.Reader) (err error) {
		taken = true
		label, err = Unpack(r, inner, m.o.MaxImage, matches(left.Key, left.Epoch))
		return err
	})
	if err == nil {
		err = m.putSuspended(ctx, label, left.Bytes, inner)
	}
	if err != nil {
		return left, taken, err
	}
	m.suspendeds.add(left.Key, left.Epoch)
	left.Node, left.Shared = m.o.Node, m.images.shared
	return left, true, nil
}

// matches returns a function for Unpack that accepts one session's epoch only.
func matches(key holdfast.SessionKey, epoch holdfast.Epoch) func(Label) error {
	return func(l Label) error {
		if l.Key != key || l.Epoch != epoch {
			return fmt.Errorf("%w: it is the image of session %s at epoch %d", ErrTorn, l.Key, l.Epoch)
		}
		return nil
	}
}

// Give writes the image of a suspended session to w, for another node. last is the last epoch
// of the session before that node's claim. The image is then gone here.
func (m *Mover) Give(ctx context.Context, key holdfast.SessionKey, epoch, last holdfast.Epoch, w io.Writer) error {
	if m.images == nil {
		return fmt.Errorf("%w: %w", holdfast.ErrNotFound, m.noImages)
	}
	o, err := m.o.Store.Get(ctx, key)
	if err == nil {
		err = m.suspendeds.follows(ctx, key, epoch, last, o.Epoch)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", holdfast.ErrNotFound, err)
	}
	return m.images.Send(ctx, key, epoch, w)
}

// Prefer returns the node that has the image of a suspended session. It returns "" if
// every node can read the image or no node has it.
func (m *Mover) Prefer(ctx context.Context, key holdfast.SessionKey) holdfast.NodeID {
	r, err := FindSuspended(ctx, m.o.Store, key)
	if err != nil || r.Shared || r.Lost != "" {
		return ""
	}
	return r.Node
}
