// Package store is the contract for the place where ownership is kept: who
// claims a session, under which lease, and how everybody else learns of it.
// The implementations are store/etcd and, for tests, test/memstore; storetest is the suite
// that both pass.
package store

import (
	"context"
	"errors"
	"time"

	"holdfast"
)

// Errors that callers decide by. They come wrapped; test with errors.Is.
// Anything that means "the store does not answer" wraps holdfast.ErrStore.
var (
	ErrTaken     = errors.New("session is owned")          // Claim: the key has a record
	ErrStale     = errors.New("record changed since read") // Advance: the revision is not the current one, or the record is gone
	ErrLeaseGone = errors.New("lease is gone")             // the lease expired or was revoked
	ErrOrder     = errors.New("state goes backwards")      // Advance: State.CanBecome says no
	ErrNodeTaken = errors.New("node id is another's")      // PutNode: the node's record hangs on another lease
	ErrForgotten = errors.New("it is out of history")      // Follows
)

// SuspendedNotes begins the names of what Suspend leaves behind.
const SuspendedNotes = "suspended/"

// LeaseID names a lease. 0 is none.
type LeaseID int64

// Store keeps one record per session and one per node. All methods may be
// called from any goroutine; each returns when ctx is done. Records that hang
// on a lease disappear with it.
type Store interface {
	Notes

	// Grant makes a lease that lives for ttl after each KeepAlive. ttl is
	// in whole seconds; the store may lengthen it, and returns what it is.
	Grant(ctx context.Context, ttl time.Duration) (LeaseID, time.Duration, error)

	// KeepAlive renews the lease once. ErrLeaseGone when there is nothing
	// to renew.
	KeepAlive(ctx context.Context, id LeaseID) error

	// Revoke ends the lease and with it every record that hangs on it. A
	// lease that is gone is no error.
	Revoke(ctx context.Context, id LeaseID) error

	// PutNode writes the node's record under its lease, if there is none or
	// it hangs on that lease already. ErrNodeTaken where it hangs on another
	// one that lives, ErrLeaseGone.
	PutNode(ctx context.Context, n holdfast.Node, id LeaseID) error

	// Node returns the record of a node whose lease lives. holdfast.ErrNotFound.
	Node(ctx context.Context, id holdfast.NodeID) (holdfast.Node, error)

	// Nodes lists the nodes whose lease lives, by id.
	Nodes(ctx context.Context) ([]holdfast.Node, error)

	// Claim creates the record of o.Key under the lease, if there is none,
	// and returns it with Epoch and Revision set to the revision of that
	// write, and Left to what Suspend left behind for this key, which is gone
	// with the same write. If the key is owned it returns the present record and
	// ErrTaken.
	Claim(ctx context.Context, o holdfast.Owner, id LeaseID) (holdfast.Owner, error)

	// Advance replaces the record if its revision is still o.Revision and
	// its state CanBecome o.State (against the state that the record has in
	// the store). Key, Node and Epoch never change; the record stays on the
	// lease it was claimed with. It returns o with its new revision; with
	// ErrStale it returns the present record, or the zero Owner where there
	// is none.
	Advance(ctx context.Context, o holdfast.Owner) (holdfast.Owner, error)

	// Release deletes the records, each only if its revision is still the
	// given one, in as few round trips as the store allows. It returns the
	// keys whose records it deleted; a record that had changed or gone is
	// not in it, and is no error.
	Release(ctx context.Context, owners ...holdfast.Owner) ([]holdfast.SessionKey, error)

	// Suspend is Release of one record, and leaves text behind in the same write,
	// for the next Claim of the key: as the note SuspendedNotes and the key, which
	// may be listed and dropped like others, and no claim comes between. ErrStale
	// when the record has another revision or is gone; then nothing has changed.
	Suspend(ctx context.Context, o holdfast.Owner, text string) error

	// Get returns the record of a key. holdfast.ErrNotFound.
	Get(ctx context.Context, key holdfast.SessionKey) (holdfast.Owner, error)

	// Follows reports whether the claim of key at epoch next was the first
	// after the one at epoch before, so that nobody has had the session in
	// between. ErrForgotten where the store no longer has that part of its history.
	Follows(ctx context.Context, key holdfast.SessionKey, before, next holdfast.Epoch) (bool, error)

	// List returns all session records, by key, and the revision that the
	// list is true at: Watch from it misses nothing.
	List(ctx context.Context) ([]holdfast.Owner, holdfast.Revision, error)

	// Watch yields what happens to session records after the revision, in
	// order, until ctx is done, when the channel is closed. Where the store
	// no longer has that part of its history it re-lists and yields the
	// difference to what it yielded before as puts and deletes, so that a
	// reader who applies every event always ends at the store's state. (What
	// the reader knew at a revision that is itself out of history is taken
	// from the last lists that this Store returned: list, then watch.) The
	// reader must drain the channel.
	Watch(ctx context.Context, after holdfast.Revision) <-chan Event
}

// Event is one change of a session's record.
type Event struct {
	Key      holdfast.SessionKey
	Deleted  bool           // released, or its lease ended
	Owner    holdfast.Owner // the record after a put; zero when Deleted
	Revision holdfast.Revision
}
