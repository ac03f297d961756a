package e2b

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/platform/store"
)

// What happens to a sandbox.
const (
	isCreated = "sandbox.lifecycle.created"
	isKilled  = "sandbox.lifecycle.killed" // or its container ended
	isUpdated = "sandbox.lifecycle.updated"
	isPaused  = "sandbox.lifecycle.paused"
	isResumed = "sandbox.lifecycle.resumed"
)

func eventTypes() []string { return []string{isCreated, isKilled, isUpdated, isPaused, isResumed} }

// event is what happened to a sandbox, as clients and webhooks get it.
type event struct {
	Version     string    `json:"version"` // v2
	ID          string    `json:"id"`      // UUID
	Type        string    `json:"type"`
	Data        eventData `json:"eventData"`
	BuildID     string    `json:"sandboxBuildId"`     // noID
	ExecutionID string    `json:"sandboxExecutionId"` // UUID; another one after a pause
	SandboxID   string    `json:"sandboxId"`
	TeamID      string    `json:"sandboxTeamId"` // noID
	TemplateID  string    `json:"sandboxTemplateId"`
	Timestamp   time.Time `json:"timestamp"`
}

type eventData struct {
	// Metadata are the sandbox's, unless they take more than maxEventMetadata bytes.
	Metadata   map[string]string `json:"sandbox_metadata,omitempty"`
	SetTimeout *time.Time        `json:"set_timeout,omitempty"` // of an update
	Execution  *execution        `json:"execution,omitempty"`   // that ends with a pause or a kill
}

type execution struct {
	StartedAt time.Time `json:"started_at"`
	CPUs      int       `json:"vcpu_count"`
	MemoryMB  int64     `json:"memory_mb"`
	Time      int64     `json:"execution_time"` // ms
}

// noID stands for what Holdfast does not have.
const noID = "00000000-0000-0000-0000-000000000000"

func uuid(b []byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// emit keeps an event, and posts it to the webhooks. It never waits.
func (d *Server) emit(kind string, s sandbox) {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	begun := s.begun()
	run := sha256.Sum256([]byte(s.ID + begun.String()))
	e := event{
		Version: "v2", ID: uuid(id), Type: kind, BuildID: noID, ExecutionID: uuid(run[:]), SandboxID: s.ID, TeamID: noID, TemplateID: s.Template, Timestamp: time.Now().UTC(),
	}
	size := 0
	for name, value := range s.Metadata {
		size += len(name) + len(value)
	}
	if size <= maxEventMetadata {
		e.Data.Metadata = s.Metadata
	}
	switch kind {
	case isUpdated:
		e.Data.SetTimeout = &s.Ends
	case isPaused, isKilled:
		cpus, memory := d.size(s)
		e.Data.Execution = &execution{begun, cpus, memory >> 20, max(0, e.Timestamp.Sub(begun)).Milliseconds()}
	}
	if kind == isKilled && s.Paused {
		e.Data.Execution = nil
	}
	d.hooks.send(e)
	select {
	case d.events <- e:
	default:
		d.o.Log.Warn("an event of a sandbox is not kept: the store is slow", "sandbox", s.ID, "event", kind)
	}
}

// eventPrefix begins the names of the events' notes in the store. A time and the node follow.
const eventPrefix = "e2b-events/"

// record writes events to the store until ctx is done, and the ones that are waiting then.
// It keeps maxEventsOfNode of this node, and none that is older than keepEvents.
func (d *Server) record(ctx context.Context) {
	var own []string // names, the oldest first
	if notes, err := d.o.Notes.ListNotes(ctx, eventPrefix); err == nil {
		for _, n := range notes {
			if strings.HasSuffix(n.Name, "/"+d.o.Node) {
				own = append(own, n.Name)
			}
		}
	}
	hour := time.NewTicker(time.Hour)
	defer hour.Stop()
	for {
		select {
		case e := <-d.events:
			own = d.recordOne(ctx, e, own)
		case <-hour.C:
			d.forgetEvents(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
			defer cancel()
			for len(d.events) > 0 && last.Err() == nil {
				own = d.recordOne(last, <-d.events, own)
			}
			return
		}
	}
}

// recordOne writes an event, and drops the oldest ones of this node.
func (d *Server) recordOne(ctx context.Context, e event, own []string) []string {
	text, err := json.Marshal(e)
	name := fmt.Sprintf("%s%019d-%s/%s", eventPrefix, e.Timestamp.UnixNano(), e.ID[:8], d.o.Node)
	if err == nil {
		err = d.o.Notes.PutNote(ctx, name, text, 0)
	}
	if err != nil {
		d.o.Log.Warn("an event of a sandbox is not kept", "sandbox", e.SandboxID, "event", e.Type, "err", err)
		return own
	}
	own = append(own, name)
	for len(own) > maxEventsOfNode {
		if d.o.Notes.DropNote(ctx, store.Note{Name: own[0]}) != nil {
			break // the next event tries it again
		}
		own = own[1:]
	}
	return own
}

// forgetEvents drops old events, also those of nodes that are gone.
func (d *Server) forgetEvents(ctx context.Context) {
	notes, err := d.o.Notes.ListNotes(ctx, eventPrefix)
	before := fmt.Sprintf("%s%019d", eventPrefix, time.Now().Add(-keepEvents).UnixNano())
	for _, n := range notes {
		if n.Name < before && err == nil {
			err = d.o.Notes.DropNote(ctx, store.Note{Name: n.Name})
		}
	}
	if err != nil && ctx.Err() == nil {
		d.o.Log.Debug("dropping old events of sandboxes", "err", err)
	}
}

// listEvents answers with events of one sandbox, or of all.
func (d *Server) listEvents(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	number := func(name string, normal, most int) (int, error) {
		if !q.Has(name) {
			return normal, nil
		}
		n, err := strconv.Atoi(q.Get(name))
		if err != nil || n < 0 || n > most {
			return 0, notValid(q, name)
		}
		return n, nil
	}
	offset, err1 := number("offset", 0, 1<<31)
	limit, err2 := number("limit", 10, maxPage)
	if err := cmp.Or(err1, err2); err != nil {
		return err
	}
	for _, kind := range q["types"] {
		if !slices.Contains(eventTypes(), kind) {
			return notValid(q, "types")
		}
	}
	notes, err := d.o.Notes.ListNotes(r.Context(), eventPrefix)
	if err != nil {
		return err
	}
	id, all := r.PathValue("id"), []event{}
	for _, n := range notes { // by name, so by time
		var e event
		if json.Unmarshal(n.Value, &e) == nil && (id == "" || id == e.SandboxID) && (!q.Has("types") || slices.Contains(q["types"], e.Type)) {
			all = append(all, e)
		}
	}
	if q.Get("orderAsc") != "true" {
		slices.Reverse(all)
	}
	all = all[min(offset, len(all)):]
	return write(w, http.StatusOK, all[:min(limit, len(all))])
}
