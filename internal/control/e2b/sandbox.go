package e2b

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// notePrefix begins the names of the sandboxes' notes in the store.
const notePrefix = "e2b/"

// sandbox is what the server knows of a session that it has started. It is a note in the
// store, so that it survives the agent and is known to all nodes.
type sandbox struct {
	ID       string              `json:"id"` // the session's key
	Template string              `json:"template"`
	From     holdfast.SessionKey `json:"from,omitempty"` // the snapshot that it started from
	Metadata map[string]string   `json:"metadata,omitempty"`
	Env      map[string]string   `json:"env,omitempty"`
	Started  time.Time           `json:"started"`
	Resumed  time.Time           `json:"resumed,omitzero"` // the last time
	Ends     time.Time           `json:"ends"`
	Pause    bool                `json:"pause,omitempty"`  // at its end
	Resume   bool                `json:"resume,omitempty"` // a request wakes it
	Paused   bool                `json:"paused,omitempty"`
	Gone     bool                `json:"gone,omitempty"`    // the note is about to be dropped
	Token    string              `json:"token"`             // of the services
	Traffic  string              `json:"traffic,omitempty"` // token of the ports; "" for none

	revision holdfast.Revision
}

// begun is when the sandbox's container started.
func (s sandbox) begun() time.Time {
	if s.Resumed.IsZero() {
		return s.Started
	}
	return s.Resumed
}

func (s sandbox) key() holdfast.SessionKey { return holdfast.SessionKey(s.ID) }

// newID returns an id that cannot be guessed: 130 random bits.
func newID() string { return strings.ToLower(rand.Text()) }

// table has the sandboxes, as the store has them.
type table struct {
	notes store.Notes
	mu    sync.Mutex
	all   map[string]sandbox
}

func newTable(n store.Notes) *table { return &table{notes: n, all: map[string]sandbox{}} }

func (t *table) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)
}

// read replaces the table by what the store has.
func (t *table) read(ctx context.Context) error {
	notes, err := t.notes.ListNotes(ctx, notePrefix)
	if err != nil {
		return err
	}
	all := map[string]sandbox{}
	for _, n := range notes {
		var s sandbox
		if json.Unmarshal(n.Value, &s) == nil && notePrefix+s.ID == n.Name {
			s.revision = n.Revision
			all[s.ID] = s
		}
		if s.Gone { // the agent that was to drop it has ended
			delete(all, s.ID)
			err = cmp.Or(err, t.notes.DropNote(ctx, n))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = all
	return err
}

// list returns the sandboxes that this node knows.
func (t *table) list() []sandbox {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]sandbox, 0, len(t.all))
	for _, s := range t.all {
		list = append(list, s)
	}
	return list
}

// find returns a sandbox. One that this node does not know yet is read from the store.
// holdfast.ErrNotFound.
func (t *table) find(ctx context.Context, id string) (sandbox, error) {
	if _, err := holdfast.ParseSessionKey(id); err != nil || len(id) > maxSandboxName {
		return sandbox{}, unknown(id)
	}
	t.mu.Lock()
	s, ok := t.all[id]
	t.mu.Unlock()
	if ok {
		return s, nil
	}
	return t.reread(ctx, id)
}

// reread reads a sandbox from the store.
func (t *table) reread(ctx context.Context, id string) (s sandbox, err error) {
	n, err := store.FindNote(ctx, t.notes, notePrefix+id)
	t.mu.Lock()
	defer t.mu.Unlock()
	if errors.Is(err, holdfast.ErrNotFound) {
		delete(t.all, id)
		return sandbox{}, unknown(id)
	}
	if err != nil {
		return sandbox{}, err
	}
	if err := json.Unmarshal(n.Value, &s); err != nil {
		return sandbox{}, fmt.Errorf("note %s: %w", n.Name, err)
	}
	if s.Gone {
		delete(t.all, id)
		return sandbox{}, unknown(id)
	}
	s.revision = n.Revision
	t.all[id] = s
	return s, nil
}

func unknown(id string) error {
	return &missing{refuse(http.StatusNotFound, "the sandbox %q does not exist", id[:min(len(id), maxSandboxName)])}
}

// missing is the error about a sandbox that does not exist.
type missing struct{ error }

func (m *missing) Unwrap() []error { return []error{m.error, holdfast.ErrNotFound} }

// add writes a new sandbox to the store.
func (t *table) add(ctx context.Context, s sandbox) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if len(text) > store.MaxNoteValue {
		return refuse(http.StatusBadRequest, "metadata and environment variables take %d bytes, at most %d are kept", len(text), store.MaxNoteValue)
	}
	n, err := t.notes.TakeNote(ctx, notePrefix+s.ID, text, 0)
	if err != nil {
		return err
	}
	s.revision = n.Revision
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[s.ID] = s
	return nil
}

// change changes a sandbox in the store. If another node has changed it meanwhile, change
// is called again with the present one. holdfast.ErrNotFound.
func (t *table) change(ctx context.Context, id string, change func(*sandbox)) (sandbox, error) {
	s, err := t.find(ctx, id)
	for range 8 {
		if err != nil {
			return sandbox{}, err
		}
		change(&s)
		var text []byte
		if text, err = json.Marshal(s); err != nil {
			return sandbox{}, err
		}
		var n store.Note
		n, err = t.notes.SwapNote(ctx, store.Note{Name: notePrefix + id, Revision: s.revision}, text)
		if err == nil {
			s.revision = n.Revision
			t.mu.Lock()
			t.all[id] = s
			t.mu.Unlock()
			return s, nil
		}
		if errors.Is(err, store.ErrStale) {
			s, err = t.reread(ctx, id)
		}
	}
	return sandbox{}, fmt.Errorf("changing the sandbox %s: %w", id, err)
}

// drop forgets a sandbox. holdfast.ErrNotFound if another node has: of all that notice the
// end of a sandbox, one reports it.
func (t *table) drop(ctx context.Context, id string) (sandbox, error) {
	s, err := t.change(ctx, id, func(s *sandbox) { s.Gone = true })
	t.mu.Lock()
	delete(t.all, id)
	t.mu.Unlock()
	if err != nil {
		return s, err
	}
	return s, t.notes.DropNote(ctx, store.Note{Name: notePrefix + id})
}
