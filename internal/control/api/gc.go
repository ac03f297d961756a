package api

import (
	"context"
	"net/http"

	"holdfast/internal/hosts/gc"
)

// Collector is the garbage collection of a Backend.
type Collector interface {
	// GCPlan says what would be deleted now.
	GCPlan(ctx context.Context) (gc.Proposal, error)

	// GCRun carries it out and calls told after each deletion. When ctx is
	// done it begins no more. holdfast.ErrBusy while another one runs.
	GCRun(ctx context.Context, told func(o gc.Outcome, deleted bool)) (gc.Cycle, error)

	// GCStatus tells how things stand.
	GCStatus(ctx context.Context) (gc.Status, error)

	// GCHistory lists the last cycles, the newest first, at most limit (0:
	// all that are kept).
	GCHistory(ctx context.Context, limit int) ([]gc.Cycle, error)
}

// GCEvent is one line of a collection: what became of one deletion, or, as the
// last, the cycle. An Error comes beside the cycle, with what was done until
// then.
type GCEvent struct {
	Deleted *gc.Outcome `json:"deleted,omitempty"`
	Skipped *gc.Outcome `json:"skipped,omitempty"`
	Cycle   *gc.Cycle   `json:"cycle,omitempty"`
	Error   *Error      `json:"error,omitempty"`
}

// GCCycles is the answer to a question for past cycles.
type GCCycles struct {
	Cycles []gc.Cycle `json:"cycles"`
}

// gcRoutes are those about garbage collection.
func gcRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/gc/plan", id: "planCollection", summary: "What garbage collection would delete now, and why.",
			access: forReader, limit: limitStats, answer: gc.Proposal{}, handle: (*server).gcPlan},
		{method: "POST", path: "/v1/gc/run", id: "runCollection", summary: "Collect garbage now; a line for each deletion, then one with the cycle. When the caller leaves, no more is deleted.",
			access: forAdmin, request: Empty{}, answer: GCEvent{}, media: mediaNDJSON, handle: (*server).gcRun},
		{method: "GET", path: "/v1/gc/status", id: "collectionStatus", summary: "How full the disk is, and what deletions did to spin-ups.",
			access: forReader, limit: limitAsk, answer: gc.Status{}, handle: (*server).gcStatus},
		{method: "GET", path: "/v1/gc/history", id: "listCollections", summary: "Past cycles of garbage collection, the newest first.",
			access: forReader, limit: limitAsk, answer: GCCycles{}, query: []param{{"limit", "at most that many; 0 is all that are kept", 0}},
			handle: (*server).gcHistory},
	}
}

func (s *server) gcPlan(w http.ResponseWriter, r *http.Request) error {
	p, err := s.b.GCPlan(r.Context())
	if err != nil {
		return err
	}
	p.Deletions = notNil(p.Deletions)
	return writeJSON(w, p)
}

// gcRun is bound to its caller.
func (s *server) gcRun(w http.ResponseWriter, r *http.Request) error {
	if err := decode(w, r, &Empty{}); err != nil {
		return err
	}
	lines := &events{stream: stream{w: w, media: mediaNDJSON}}
	cy, err := s.b.GCRun(r.Context(), func(o gc.Outcome, deleted bool) {
		if deleted {
			lines.send(GCEvent{Deleted: &o})
		} else {
			lines.send(GCEvent{Skipped: &o})
		}
	})
	cy.Deleted, cy.Skipped = notNil(cy.Deleted), notNil(cy.Skipped)
	note(r.Context(), "deleted", len(cy.Deleted))
	note(r.Context(), "skipped", len(cy.Skipped))
	switch {
	case err != nil && !lines.begun:
		return err
	case err != nil:
		lines.send(GCEvent{Cycle: &cy, Error: toError(err)})
		return sent{err}
	}
	lines.send(GCEvent{Cycle: &cy})
	return nil
}

func (s *server) gcStatus(w http.ResponseWriter, r *http.Request) error {
	st, err := s.b.GCStatus(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, st)
}

func (s *server) gcHistory(w http.ResponseWriter, r *http.Request) error {
	limit, err := limitOf(r)
	if err != nil {
		return err
	}
	list, err := s.b.GCHistory(r.Context(), limit)
	if err != nil {
		return err
	}
	return writeJSON(w, GCCycles{notNil(list)})
}
