package api

import (
	"context"
	"net/http"

	"holdfast/internal/hosts/gc"
)

// Collector collects garbage. *gc.Collector is one.
type Collector interface {
	// Plan returns what a cycle would delete now.
	Plan(ctx context.Context) (gc.Proposal, error)

	// List returns all objects of the engine, and what keeps each.
	List(ctx context.Context) (gc.Inventory, error)

	// Collect runs a cycle and calls progress after each deletion. When ctx is done
	// it begins no more deletions. holdfast.ErrBusy while another cycle runs.
	Collect(ctx context.Context, why gc.Trigger, progress func(o gc.Outcome, deleted bool)) (gc.Cycle, error)

	// Status returns the disk's use and the effect of deletions on spin-ups.
	Status(ctx context.Context) (gc.Status, error)

	// History lists the last cycles, the newest first, at most limit (0: all
	// that are kept).
	History(limit int) ([]gc.Cycle, error)
}

// GCEvent is one line of a collection: the outcome of one deletion, or, in the
// last line, the cycle. If the collection failed the cycle has what was done
// until then, and Error is set.
type GCEvent struct {
	Deleted *gc.Outcome `json:"deleted,omitempty"`
	Skipped *gc.Outcome `json:"skipped,omitempty"`
	Cycle   *gc.Cycle   `json:"cycle,omitempty"`
	Error   *Error      `json:"error,omitempty"`
}

// GCCycles is the answer to a list of past cycles.
type GCCycles struct {
	Cycles []gc.Cycle `json:"cycles"`
}

type gcHandlers struct{ collector Collector }

func gcRoutes(c Collector) []route {
	h := gcHandlers{c}
	return []route{
		{method: "GET", path: "/v1/gc/plan", id: "planCollection", summary: "What garbage collection would delete now, and why.",
			access: forReader, limit: limitPlan, answer: gc.Proposal{}, handle: asking(h.plan)},
		{method: "GET", path: "/v1/gc/objects", id: "listObjects", summary: "The objects of the engine, the largest first, and what keeps each.",
			access: forReader, limit: limitPlan, answer: gc.Inventory{}, handle: asking(h.objects)},
		{method: "POST", path: "/v1/gc/run", id: "runCollection", summary: "Collect garbage now; a line for each deletion, then one with the cycle. If the caller disconnects, no more is deleted.",
			access: forAdmin, request: Empty{}, answer: GCEvent{}, media: mediaNDJSON, handle: h.run},
		{method: "GET", path: "/v1/gc/status", id: "collectionStatus", summary: "The disk's use, and the effect of deletions on spin-ups.",
			access: forReader, limit: limitAsk, answer: gc.Status{}, handle: asking(h.status)},
		{method: "GET", path: "/v1/gc/history", id: "listCollections", summary: "Past cycles of garbage collection, the newest first.",
			access: forReader, limit: limitAsk, answer: GCCycles{}, query: []param{limitParam}, handle: asking(h.history)},
	}
}

func (h gcHandlers) plan(r *http.Request) (gc.Proposal, error) {
	p, err := h.collector.Plan(r.Context())
	p.Deletions = notNil(p.Deletions)
	return p, err
}

func (h gcHandlers) objects(r *http.Request) (gc.Inventory, error) {
	l, err := h.collector.List(r.Context())
	l.Objects = notNil(l.Objects)
	return l, err
}

// run is bound to its caller: when the caller disconnects, no more is deleted.
func (h gcHandlers) run(w http.ResponseWriter, r *http.Request) error {
	if err := decode(w, r, &Empty{}); err != nil {
		return err
	}
	lines := &events{stream: stream{w: w, media: mediaNDJSON}}
	cy, err := h.collector.Collect(r.Context(), gc.ByRequest, func(o gc.Outcome, deleted bool) {
		if deleted {
			lines.send(GCEvent{Deleted: &o})
		} else {
			lines.send(GCEvent{Skipped: &o})
		}
	})
	cy.Deleted, cy.Skipped = notNil(cy.Deleted), notNil(cy.Skipped)
	note(r.Context(), "deleted", len(cy.Deleted))
	note(r.Context(), "skipped", len(cy.Skipped))
	return lines.end(err, func(e *Error) any { return GCEvent{Cycle: &cy, Error: e} })
}

func (h gcHandlers) status(r *http.Request) (gc.Status, error) {
	return h.collector.Status(r.Context())
}

func (h gcHandlers) history(r *http.Request) (GCCycles, error) {
	limit, err := limitOf(r)
	if err != nil {
		return GCCycles{}, err
	}
	list, err := h.collector.History(limit)
	return GCCycles{notNil(list)}, err
}
