package fleet

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/test/memstore"
)

func testDirectory(s store.Store) *Directory {
	return NewDirectory(s, "self", NewMetrics(prometheus.NewRegistry()), testLog())
}

// follow runs a directory over a store until the test ends.
func follow(t *testing.T, s store.Store) *Directory {
	t.Helper()
	d := testDirectory(s)
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := d.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() { stop(); done.Wait() })
	return d
}

// TestDirectoryOfARestoredStore: the store is set back, so that its epochs are older than
// the directory's.
func TestDirectoryOfARestoredStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(100)
		old := claim(t, s, "a", holdfast.Ready)
		restore := s.Backup()
		_, err := s.Release(t.Context(), old)
		must(t, err)
		claim(t, s, "a", holdfast.Ready)
		claim(t, s, "b", holdfast.Ready)
		d := follow(t, s)
		synctest.Wait()
		if n := d.Len(); n != 2 {
			t.Fatalf("%d records", n)
		}
		restore()
		_, err = s.Find(t.Context()) // notices
		must(t, err)
		synctest.Wait()
		if o, ok := d.Owner("a"); !ok || o.Epoch != old.Epoch || d.Len() != 1 {
			t.Errorf("of %d records, a is %v", d.Len(), o)
		}
		must(t, s.Resume(t.Context()))
		synctest.Wait()
		if o, ok := d.Owner("a"); !ok || o.Epoch != old.Epoch || d.Len() != 1 {
			t.Errorf("after Resume, of %d records a is %v", d.Len(), o)
		}
		b := claim(t, s, "b", holdfast.Ready)
		synctest.Wait()
		if o, ok := d.Owner("b"); !ok || o.Epoch != b.Epoch {
			t.Errorf("b is %v, not %v", o, b)
		}
	})
}

// TestEveryEventIsReported: also those that change nothing in the directory.
func TestEveryEventIsReported(t *testing.T) {
	s := memstore.New(100)
	d := testDirectory(s)
	events := make(chan store.Event, 8)
	d.event = func(e store.Event) { events <- e }
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	<-d.Ready()
	o := claim(t, s, "a", holdfast.Claimed)
	_, err := s.Release(t.Context(), o)
	must(t, err)
	if put, gone := <-events, <-events; put.Owner != o || gone.Key != "a" || !gone.Deleted {
		t.Errorf("%+v, %+v", put, gone)
	}
	stop()
	must(t, <-ended)
}

// claim writes a record in the state under a lease of an hour.
func claim(t *testing.T, s store.Store, k holdfast.SessionKey, state holdfast.State) holdfast.Owner {
	t.Helper()
	lease, _, err := s.Grant(t.Context(), time.Hour)
	must(t, err)
	o, err := s.Claim(t.Context(), holdfast.Owner{Key: k, Node: "other", State: holdfast.Claimed, Template: "demo"}, lease)
	must(t, err)
	if state != holdfast.Claimed {
		o.State = state
		o, err = s.Advance(t.Context(), o)
		must(t, err)
	}
	return o
}

func TestDirectoryIsCompleteWhenReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(100)
		for i := range 50 {
			claim(t, s, holdfast.SessionKey(fmt.Sprint("k", i)), holdfast.Ready)
		}
		s.SetDown(true)
		d := follow(t, s)
		time.Sleep(time.Minute)
		select {
		case <-d.Ready():
			t.Fatal("the directory is ready without the store")
		default:
		}
		s.SetDown(false)
		<-d.Ready()
		if n := d.Len(); n != 50 {
			t.Errorf("%d records when it is ready, want 50", n)
		}
		want := holdfast.Owner{Key: "k7", Node: "other", Template: "demo", State: holdfast.Ready}
		got, ok := d.Owner("k7")
		want.Epoch, want.Revision = got.Epoch, got.Revision
		if !ok || got != want || got.Epoch == 0 || got.Revision <= holdfast.Revision(got.Epoch) {
			t.Errorf("Owner = %+v, %v; want %+v", got, ok, want)
		}
	})
}

func TestFollowerSeesEveryChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(100)
		d := follow(t, s)
		<-d.Ready()
		f := d.Follow("a")
		defer f.Close()
		snapshot, changed := f.Look()
		if snapshot.Known || !snapshot.LastAt.IsZero() {
			t.Fatalf("at first: %+v", snapshot)
		}
		o := claim(t, s, "a", holdfast.Claimed)
		<-changed
		for _, state := range []holdfast.State{holdfast.Ready, holdfast.Leaving} {
			_, changed = f.Look()
			o.State = state
			var err error
			o, err = s.Advance(t.Context(), o)
			must(t, err)
			<-changed
			if snapshot, _ = f.Look(); snapshot.Owner.State != state {
				t.Fatalf("state %s, want %s", snapshot.Owner.State, state)
			}
		}
		_, changed = f.Look()
		_, err := s.Release(t.Context(), o)
		must(t, err)
		<-changed
		snapshot, _ = f.Look()
		if snapshot.Known || snapshot.Last.State != holdfast.Leaving || snapshot.Last.Template != "demo" || snapshot.Last.Node != "other" || !snapshot.LastAt.Equal(time.Now()) {
			t.Errorf("after the release: %+v", snapshot)
		}
		time.Sleep(tombstoneTTL)
		if snapshot, _ = f.Look(); !snapshot.LastAt.IsZero() {
			t.Errorf("it is still remembered after %v: %+v", tombstoneTTL, snapshot)
		}
	})
}

func TestLeft(t *testing.T) {
	closed := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(100)
		d := follow(t, s)
		<-d.Ready()
		for name, end := range map[string]func(holdfast.Owner){
			"leaves":   func(o holdfast.Owner) { o.State = holdfast.Leaving; _, _ = s.Advance(t.Context(), o) },
			"goes":     func(o holdfast.Owner) { _, _ = s.Release(t.Context(), o) },
			"replaced": func(o holdfast.Owner) { _, _ = s.Release(t.Context(), o); claim(t, s, o.Key, holdfast.Ready) },
		} {
			o := claim(t, s, holdfast.SessionKey(name), holdfast.Ready)
			synctest.Wait()
			left := d.Left(o.Key, o.Epoch)
			if closed(left) || closed(d.Left(o.Key, o.Epoch)) || !closed(d.Left(o.Key, o.Epoch-1)) || !closed(d.Left(o.Key, o.Epoch+1)) {
				t.Errorf("%s: open for the wrong epochs", name)
			}
			end(o)
			synctest.Wait()
			if !closed(left) || !closed(d.Left(o.Key, o.Epoch)) {
				t.Errorf("%s: it is still open", name)
			}
		}
		if len(d.left) != 0 {
			t.Errorf("%d channels are kept", len(d.left))
		}
	})
}

// TestStaleCacheHeals lets the watch miss events while the store is down and its
// history is lost.
func TestStaleCacheHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(4)
		d := follow(t, s)
		<-d.Ready()
		gone := claim(t, s, "gone", holdfast.Ready)
		stays := claim(t, s, "stays", holdfast.Claimed)
		synctest.Wait()
		_, err := s.Release(t.Context(), gone)
		must(t, err)
		stays.State = holdfast.Ready
		_, err = s.Advance(t.Context(), stays)
		must(t, err)
		fresh := claim(t, s, "fresh", holdfast.Ready)
		s.Forget()
		s.SetDown(true)
		s.SetDown(false)
		synctest.Wait()
		if _, ok := d.Owner("gone"); ok {
			t.Error("a record that was released during a gap of the watch is still known")
		}
		if o, _ := d.Owner("stays"); o.State != holdfast.Ready {
			t.Errorf("stays is %s", o.State)
		}
		if o, ok := d.Owner("fresh"); !ok || o.Epoch != fresh.Epoch {
			t.Errorf("fresh is %+v", o)
		}
	})
}

func TestRefreshFeedsTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(100)
		d := testDirectory(s) // with the latest possible watch
		o := claim(t, s, "a", holdfast.Ready)
		if got, err := d.Refresh(t.Context(), "a"); err != nil || got != o {
			t.Errorf("Refresh = %+v, %v; want %+v", got, err, o)
		}
		if got, ok := d.Owner("a"); !ok || got.Epoch != o.Epoch {
			t.Errorf("after it the cache has %+v", got)
		}
		_, err := s.Release(t.Context(), o)
		must(t, err)
		left := d.Left("a", o.Epoch)
		if _, err := d.Refresh(t.Context(), "a"); !errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("Refresh = %v, want ErrNotFound", err)
		}
		<-left
		d.apply(store.Event{Key: "a", Owner: o, Revision: o.Revision})
		if got, ok := d.Owner("a"); ok {
			t.Errorf("the late watch brings %+v back", got)
		}
		s.SetDown(true)
		if _, err := d.Refresh(t.Context(), "a"); !errors.Is(err, holdfast.ErrStore) {
			t.Errorf("Refresh = %v, want ErrStore", err)
		}
	})
}

// TestSkippedRecordIsReadAgain: no event reports a record that was learned ahead of the
// watch and removed while the history was compacted, so it is read again.
func TestSkippedRecordIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(100)
		d := follow(t, s)
		<-d.Ready()
		s.SetHung(true)
		d.Learn(holdfast.Owner{Key: "a", Node: "other", Epoch: 5, State: holdfast.Ready})
		s.SetHung(false)
		left := d.Left("a", 5)
		for i := range 8 {
			claim(t, s, holdfast.SessionKey(fmt.Sprint("k", i)), holdfast.Claimed)
		}
		<-left
		if o, ok := d.Owner("a"); ok {
			t.Errorf("it still has %+v", o)
		}
	})
}

// change is one step of a session's life in a history.
type change struct {
	deleted bool
	owner   holdfast.Owner
	at      holdfast.Revision
}

// history draws random records of one key, one revision for each step, as a store
// writes them.
func history(t *rapid.T) []change {
	var all []change
	var at holdfast.Revision
	for range rapid.IntRange(1, 4).Draw(t, "lives") {
		at++
		o := holdfast.Owner{Key: "a", Node: holdfast.NodeID(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "node")), Epoch: holdfast.Epoch(at)}
		for _, s := range []holdfast.State{holdfast.Claimed, holdfast.Starting, holdfast.Ready, holdfast.Leaving} {
			if s != holdfast.Claimed && rapid.Bool().Draw(t, "skip") {
				continue
			}
			if s != holdfast.Claimed {
				at++
			}
			o.State, o.Revision = s, at
			all = append(all, change{owner: o, at: at})
		}
		at++
		all = append(all, change{deleted: true, at: at})
	}
	return all
}

// TestCacheNeverGoesBack feeds a directory with one history from three sources, each
// at its own pace: the watch, slow reads of the store, and messages of other nodes. Its
// state must only move forward, and end at the state of the store.
func TestCacheNeverGoesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		past := history(t)
		reads := &slowStore{}
		d := testDirectory(reads)
		head, watched := 0, 0 // events so far, events that the watch has reported
		var seen holdfast.Owner
		over := holdfast.Epoch(0) // epochs up to here were seen to end
		look := func() {
			o, ok := d.Owner("a")
			switch {
			case !ok && seen.Epoch > over && !ended(past[:head], seen.Epoch):
				t.Fatalf("%+v is forgotten while the epoch lasts", seen)
			case !ok:
				over = max(over, seen.Epoch)
				return
			case o.Epoch <= over:
				t.Fatalf("epoch %d is back; epochs up to %d have ended", o.Epoch, over)
			case o.Epoch < seen.Epoch, o.Revision < seen.Revision, o.Epoch == seen.Epoch && !seen.State.CanBecome(o.State):
				t.Fatalf("from %+v back to %+v", seen, o)
			}
			seen = o
		}
		watch := func() {
			c := past[watched]
			watched++
			d.apply(store.Event{Key: "a", Deleted: c.deleted, Owner: c.owner, Revision: c.at})
			look()
		}
		var underWay []func()
		for _, step := range rapid.SliceOfN(rapid.IntRange(0, 5), 10, 60).Draw(t, "steps") {
			switch {
			case step <= 1 && head < len(past): // an event
				head++
			case step == 2 && watched < head:
				watch()
			case step == 3 && head > 0: // a read is sent
				underWay = append(underWay, reads.begin(d, past[head-1]))
			case step == 4 && len(underWay) > 0: // an answer arrives
				i := rapid.IntRange(0, len(underWay)-1).Draw(t, "answer")
				underWay[i]()
				underWay = append(underWay[:i], underWay[i+1:]...)
			case step == 5 && head > 0: // a node sends an earlier record, without the revision
				if c := past[rapid.IntRange(0, head-1).Draw(t, "told")]; !c.deleted {
					c.owner.Revision = 0
					d.Confirm(c.owner)
				}
			}
			look()
		}
		for head = len(past); watched < head; {
			watch()
		}
		for _, end := range underWay {
			end()
			look()
		}
		if o, ok := d.Owner("a"); ok {
			t.Fatalf("at the end it has %+v, the store no record", o)
		}
	})
}

// ended reports whether an epoch is over in a history.
func ended(past []change, epoch holdfast.Epoch) bool {
	for _, c := range past {
		if c.deleted && c.at > holdfast.Revision(epoch) {
			return true
		}
	}
	return false
}

// TestOldRecordIsNotLearned: an old record of a removed session is ignored.
func TestOldRecordIsNotLearned(t *testing.T) {
	d := testDirectory(nil)
	d.apply(store.Event{Key: "b", Owner: holdfast.Owner{Key: "b", Epoch: 10, Revision: 10, State: holdfast.Claimed}, Revision: 10})
	d.Learn(holdfast.Owner{Key: "a", Node: "x", Epoch: 5, Revision: 7, State: holdfast.Ready})
	if o, ok := d.Owner("a"); ok {
		t.Errorf("it accepted %+v", o)
	}
	d.Learn(holdfast.Owner{Key: "a", Node: "x", Epoch: 11, State: holdfast.Ready})
	if o, ok := d.Owner("a"); !ok || o.Epoch != 11 {
		t.Errorf("it did not accept a new record: %+v", o)
	}
}

// TestTombstonesAreBounded: their number is bounded, and those of epochs that could
// return stay.
func TestTombstonesAreBounded(t *testing.T) {
	g := newTombstones()
	now := time.Now()
	g.add("unsure", record{epoch: 1, revision: 1}, false, now)
	for i := range 100 {
		g.add(holdfast.SessionKey(fmt.Sprint("k", i)), record{epoch: 2}, true, now)
	}
	now = now.Add(tombstoneTTL)
	g.add("last", record{epoch: 3}, true, now)
	if !g.covers("unsure", 1) || len(g.byKey) != 2 || len(g.order) != 2 {
		t.Errorf("%d are kept, %d in order", len(g.byKey), len(g.order))
	}
	g.confirm("unsure", 9)
	for i := range maxTombstones + 50 {
		g.add(holdfast.SessionKey(fmt.Sprint("k", i)), record{epoch: 4}, false, now)
	}
	if len(g.byKey) > maxTombstones || len(g.order) > maxTombstones {
		t.Errorf("%d are kept, %d in order, at most %d are allowed", len(g.byKey), len(g.order), maxTombstones)
	}
}

// TestMemory checks the size of a large directory against its documentation.
func TestMemory(t *testing.T) {
	const sessions = 20_000
	owners := make([]holdfast.Owner, sessions)
	for i := range owners {
		k := fmt.Sprintf("/holdfast/v1/sessions/user-%06d-abcdef", i) // the key in a store
		owners[i] = holdfast.Owner{
			Key: holdfast.SessionKey(k[len("/holdfast/v1/sessions/"):]), Node: holdfast.NodeID(fmt.Sprint("node-", i%1000)),
			Epoch: holdfast.Epoch(i + 1), Revision: holdfast.Revision(i + sessions), State: holdfast.Ready, Template: "default",
			ContainerID: strings.Repeat("c", 64), Address: "172.17.0.1:8080",
		}
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // frees what the first collection has found
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	d := testDirectory(nil)
	d.fill(owners, 2*sessions)
	each := (heap() - before) / sessions
	runtime.KeepAlive(owners)
	if d.Len() != sessions {
		t.Fatalf("%d records", d.Len())
	}
	t.Logf("%d bytes for each of %d records", each, sessions)
	if each > 200 {
		t.Errorf("%d bytes for each record", each)
	}
}

// slowStore delays the answer of each Get. The answer is the state at the request.
type slowStore struct {
	store.Store
	mu     sync.Mutex
	answer change
	asked  chan struct{}
	goOn   chan struct{}
}

// begin sends a read and returns a function that delivers its answer.
func (s *slowStore) begin(d *Directory, now change) (end func()) {
	asked, goOn, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s.mu.Lock()
	s.answer, s.asked, s.goOn = now, asked, goOn
	s.mu.Unlock()
	go func() {
		defer close(done)
		_, _ = d.Refresh(context.Background(), "a")
	}()
	<-asked
	return func() { close(goOn); <-done }
}

func (s *slowStore) Get(context.Context, holdfast.SessionKey) (holdfast.Owner, error) {
	s.mu.Lock()
	answer, goOn := s.answer, s.goOn
	close(s.asked)
	s.mu.Unlock()
	<-goOn
	if answer.deleted {
		return holdfast.Owner{}, holdfast.ErrNotFound
	}
	return answer.owner, nil
}
