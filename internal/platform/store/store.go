// Package store is the interface to the store of ownership: which node claims a
// session, under which lease, and how the other nodes learn of it. The
// implementations are store/etcd and, for tests, test/memstore; storetest is the
// suite that both pass.
package store

import (
	"context"
	"errors"
	"time"

	"holdfast"
)

// Errors that callers decide by. They come wrapped; test with errors.Is. Every error
// that means "the store does not answer" wraps holdfast.ErrStore.
var (
	ErrTaken     = errors.New("session is owned")          // Claim: the key has a record
	ErrStale     = errors.New("record changed since read") // Advance: the revision is not the current one, or the record is gone
	ErrLeaseGone = errors.New("lease is gone")             // the lease expired or was revoked
	ErrOrder     = errors.New("state goes backwards")      // Advance: State.CanBecome says no
	ErrNodeTaken = errors.New("node id is another's")      // PutNode: the node's record is under another lease
	ErrForgotten = errors.New("it is out of history")      // Follows
)

// SuspendedNotes is the prefix of the names of the notes that Suspend leaves.
const SuspendedNotes = "suspended/"

// SnapshotNotes is the prefix of the names of the notes of named snapshots.
const SnapshotNotes = "snapshots/"

// LeaseID identifies a lease. 0 is none.
type LeaseID int64

// Store keeps one record per session and one per node. All methods may be called from
// any goroutine; each returns when ctx is done. Records under a lease disappear with
// it.
type Store interface {
	Notes

	// Grant makes a lease that lives for ttl after each KeepAlive. ttl is in whole
	// seconds; the store may lengthen it, and returns the TTL in effect.
	Grant(ctx context.Context, ttl time.Duration) (LeaseID, time.Duration, error)

	// KeepAlive renews the lease once. ErrLeaseGone if it has expired or was revoked.
	KeepAlive(ctx context.Context, id LeaseID) error

	// Revoke ends the lease and deletes every record under it. A lease that is gone
	// is no error.
	Revoke(ctx context.Context, id LeaseID) error

	// PutNode writes the node's record under its lease, if there is none or it is
	// already under that lease. ErrNodeTaken if it is under another living lease,
	// ErrLeaseGone.
	PutNode(ctx context.Context, n holdfast.Node, id LeaseID) error

	// Node returns the record of a node whose lease lives. holdfast.ErrNotFound.
	Node(ctx context.Context, id holdfast.NodeID) (holdfast.Node, error)

	// Nodes lists the nodes whose lease lives, by id.
	Nodes(ctx context.Context) ([]holdfast.Node, error)

	// Claim creates the record of o.Key under the lease, if there is none. It returns
	// the record with Epoch and Revision set to the revision of that write, and
	// SuspendNote set to the text that Suspend left for this key. The same write
	// deletes that text. ErrRestored if the store was restored and Resume not called
	// since; the record may then be written. If the key is owned, Claim returns the present record and
	// ErrTaken.
	Claim(ctx context.Context, o holdfast.Owner, id LeaseID) (holdfast.Owner, error)

	// Advance replaces the record if its revision is still o.Revision and its state
	// CanBecome o.State (against the state that the record has in the store). Key,
	// Node and Epoch never change; the record stays on the lease it was claimed with.
	// It returns o with its new revision; with ErrStale it returns the present
	// record, or the zero Owner if there is none.
	Advance(ctx context.Context, o holdfast.Owner) (holdfast.Owner, error)

	// Release deletes the records, each only if its revision is still the given one,
	// in as few round trips as the store allows. It returns the keys of the records
	// that it deleted. A record that had changed or was gone is not among them, and
	// is no error.
	Release(ctx context.Context, owners ...holdfast.Owner) ([]holdfast.SessionKey, error)

	// Suspend is Release of one record, and in the same write leaves text for the
	// next Claim of the key, so that no claim comes between. The text is the note
	// with the name SuspendedNotes + key, which may be listed and dropped like
	// others. ErrStale if the record has another revision or is gone; then nothing
	// has changed.
	Suspend(ctx context.Context, o holdfast.Owner, text string) error

	// Get returns the record of a key. holdfast.ErrNotFound.
	Get(ctx context.Context, key holdfast.SessionKey) (holdfast.Owner, error)

	// Find returns the records of the keys, by key. A key without a record is left out.
	// With no key, too, it notices that the store was restored.
	Find(ctx context.Context, keys ...holdfast.SessionKey) ([]holdfast.Owner, error)

	// Follows reports whether the claim of key at epoch next was the first after the
	// one at epoch before, so that no node had the session in between. ErrForgotten
	// if the store no longer has that part of its history.
	Follows(ctx context.Context, key holdfast.SessionKey, before, next holdfast.Epoch) (bool, error)

	// List returns all session records, by key, and the revision of the list. A Watch
	// from that revision misses nothing.
	List(ctx context.Context) ([]holdfast.Owner, holdfast.Revision, error)

	// Seen returns what this Store has seen. Remember adds what an earlier process has
	// seen.
	Seen() Seen
	Remember(Seen)

	// RaiseEpochs makes the epochs of all later claims higher than those that this
	// Store has seen.
	RaiseEpochs(ctx context.Context) error

	// Resume raises the epochs, and then ends the refusal of claims that begins when
	// the Store notices that it was restored. ErrRestored while a reader of a Watch has
	// not got the restored records.
	Resume(ctx context.Context) error

	// Watch yields the changes of session records after the revision, in order. When
	// ctx is done it closes the channel. If the store no longer has that part of its
	// history, Watch lists again and yields the difference as puts and deletes. A
	// reader that applies every event therefore always reaches the store's state. If
	// the revision itself is out of history, the difference is to the last lists that
	// this Store returned: list, then watch. When the Store notices that it was
	// restored, and at Resume, Watch yields all records in one event. The reader must
	// drain the channel.
	Watch(ctx context.Context, after holdfast.Revision) <-chan Event
}

// Event is one change of a session's record, or all records of a store that was
// restored.
type Event struct {
	Key      holdfast.SessionKey
	Deleted  bool           // released, or its lease ended
	Owner    holdfast.Owner // the record after a put; zero when Deleted
	Revision holdfast.Revision
	// Restored means that the reader has to forget everything that it knows. Owners
	// are then all records, and Key is "".
	Restored bool
	Owners   []holdfast.Owner
}
