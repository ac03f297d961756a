package embedded

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"holdfast"
	"holdfast/internal/platform/boltfile"
	"holdfast/internal/platform/store"
)

// The buckets on disk. Values are JSON.
const (
	metaBucket    = "meta"
	leaseBucket   = "leases"
	nodeBucket    = "nodes"
	noteBucket    = "notes"
	sessionBucket = "sessions"
	historyBucket = "history" // of session records, by revision and by number within it
)

// meta is what is kept beside the records, as the only value of metaBucket.
type meta struct {
	Cluster  uint64            `json:"cluster"` // random: distinguishes stores
	Revision holdfast.Revision `json:"revision"`
	Gone     holdfast.Revision `json:"gone"` // changes up to here have left the history
}

type record struct {
	Owner holdfast.Owner `json:"owner"`
	Lease store.LeaseID  `json:"lease"`
}

type nodeRecord struct {
	Node  holdfast.Node `json:"node"`
	Lease store.LeaseID `json:"lease"`
}

type noteRecord struct {
	Note  store.Note    `json:"note"`
	Lease store.LeaseID `json:"lease,omitempty"`
}

// event is a change in the history.
type event struct {
	store.Event
	At time.Time // of the change
	id string    // its key on disk
}

// state is the content of a store. Only one goroutine at a time uses it.
type state struct {
	meta
	leases   map[store.LeaseID]*lease
	sessions map[holdfast.SessionKey]record
	nodes    map[holdfast.NodeID]nodeRecord
	notes    map[string]noteRecord
	history  []event       // oldest first
	changed  chan struct{} // closed and replaced at every commit
	changes  []Change      // since the last commit
}

func newState() *state {
	return &state{
		leases:   map[store.LeaseID]*lease{},
		sessions: map[holdfast.SessionKey]record{},
		nodes:    map[holdfast.NodeID]nodeRecord{},
		notes:    map[string]noteRecord{},
		changed:  make(chan struct{}),
	}
}

// load reads the disk. Leases that the store had keep the time that is left to them.
func (s *Store) load() error {
	st, before := newState(), s.state
	if err := s.disk.Load(st.add); err != nil {
		return err
	}
	sort.Slice(st.history, func(i, j int) bool { return st.history[i].id < st.history[j].id })
	if st.Cluster == 0 { // the disk is empty
		st.Cluster, st.Revision = rand.Uint64()|1, 1
		st.changes = append(st.changes, st.meta.change()) // the next process has to know it
	}
	for id, l := range st.leases {
		l.expires = time.Now().Add(l.TTL)
		if was := before.leases[id]; was != nil {
			l.expires = was.expires
		}
		s.watchLease(id, l)
	}
	for _, l := range before.leases {
		l.timer.Stop()
	}
	s.state = st
	before.wake()
	return nil
}

// add adds a value of the disk.
func (st *state) add(bucket, key string, value []byte) (err error) {
	switch bucket {
	case metaBucket:
		err = json.Unmarshal(value, &st.meta)
	case leaseBucket:
		err = decode(value, func(l *lease) { st.leases[l.ID] = l })
	case nodeBucket:
		err = decode(value, func(r *nodeRecord) { st.nodes[r.Node.ID] = *r })
	case noteBucket:
		err = decode(value, func(r *noteRecord) { st.notes[r.Note.Name] = *r })
	case sessionBucket:
		err = decode(value, func(r *record) { st.sessions[r.Owner.Key] = *r })
	case historyBucket:
		err = decode(value, func(e *event) { e.id = key; st.history = append(st.history, *e) })
	default:
		err = errors.New("an unknown bucket")
	}
	if err != nil {
		return fmt.Errorf("%w: %s %q: %w", boltfile.ErrDamaged, bucket, key, err)
	}
	return nil
}

func decode[T any](value []byte, use func(*T)) error {
	v := new(T)
	if err := json.Unmarshal(value, v); err != nil {
		return err
	}
	use(v)
	return nil
}

// set changes a value on disk at the next commit. The caller then changes it in memory.
func (st *state) set(bucket, key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	st.changes = append(st.changes, Change{bucket, key, text})
	return nil
}

func (st *state) unset(bucket, key string) {
	st.changes = append(st.changes, Change{Bucket: bucket, Key: key})
}

// change is the value on disk.
func (m meta) change() Change {
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // numbers can be encoded
	}
	return Change{metaBucket, "store", text}
}

// put and delete change a session's record at st.Revision.
func (st *state) put(r record) error {
	if err := st.set(sessionBucket, string(r.Owner.Key), r); err != nil {
		return err
	}
	st.sessions[r.Owner.Key] = r
	st.tell(store.Event{Key: r.Owner.Key, Owner: r.Owner, Revision: st.Revision})
	return nil
}

func (st *state) delete(key holdfast.SessionKey) {
	st.unset(sessionBucket, string(key))
	delete(st.sessions, key)
	st.tell(store.Event{Key: key, Deleted: true, Revision: st.Revision})
}

// tell adds an event to the history.
func (st *state) tell(of store.Event) {
	number := uint32(0) // several records may end with one lease
	if n := len(st.history); n > 0 && st.history[n-1].Revision == of.Revision {
		number = binary.BigEndian.Uint32([]byte(st.history[n-1].id[8:])) + 1
	}
	id := binary.BigEndian.AppendUint64(nil, uint64(of.Revision))
	e := event{of, time.Now(), string(binary.BigEndian.AppendUint32(id, number))}
	if err := st.set(historyBucket, e.id, e); err != nil {
		panic(err) // put has encoded the record
	}
	st.history = append(st.history, e)
}

// The history has the last leastEvents changes, and up to mostEvents of the last
// retention. A change takes about 400 bytes of memory and 1 KB on disk. A node's next agent
// reads what has happened since a minute or two before the end of the last one.
const (
	leastEvents = 5_000
	mostEvents  = 50_000
	retention   = 5 * time.Minute
)

// trim removes old changes from the history: all before the last fixed ones, or if fixed is
// 0 by the constants above.
func (st *state) trim(fixed int) {
	n := 0
	for ; n < len(st.history); n++ {
		left := len(st.history) - n
		if fixed > 0 && left <= fixed || fixed == 0 && (left <= leastEvents || left <= mostEvents && time.Since(st.history[n].At) < retention) {
			break
		}
		st.unset(historyBucket, st.history[n].id)
		st.Gone = st.history[n].Revision
	}
	st.history = slices.Delete(st.history, 0, n)
}

// wake wakes the watches.
func (st *state) wake() {
	close(st.changed)
	st.changed = make(chan struct{})
}

// owners returns all records by key.
func (st *state) owners() []holdfast.Owner {
	owners := make([]holdfast.Owner, 0, len(st.sessions))
	for _, r := range st.sessions {
		owners = append(owners, r.Owner)
	}
	sort.Slice(owners, func(i, j int) bool { return owners[i].Key < owners[j].Key })
	return owners
}
