package api

import (
	"context"
	"net/http"
	"time"

	"holdfast"
)

// NodeService lists the fleet's nodes and takes this node out of rotation.
type NodeService interface {
	// Nodes lists the nodes with a live lease, by id.
	Nodes(ctx context.Context) ([]holdfast.Node, error)

	// Drain hands over everything that this node owns, and calls progress after
	// each step. A container that could not be killed is in the report and is
	// not an error.
	Drain(ctx context.Context, q DrainRequest, progress func(holdfast.Step)) (holdfast.DrainReport, error)

	// Cordon makes this node refuse new sessions. It keeps those that it has.
	Cordon() error

	// Uncordon lets the node accept sessions again after a drain or a cordon.
	Uncordon() error
}

// Nodes is the answer to a list of nodes.
type Nodes struct {
	Nodes []holdfast.Node `json:"nodes"`
}

// DrainRequest asks a node to hand over everything that it owns.
type DrainRequest struct {
	// Budget is how long the drain may take, up to MaxDrainBudget; 0 is the
	// agent's default.
	Budget holdfast.Millis `json:"budget_ms,omitempty"`
	// PauseEngine says whether the engine is paused while containers die; absent is
	// the agent's default.
	PauseEngine *bool `json:"pause_engine,omitempty"`
	// EngineAll includes every container of the engine, also those that
	// Holdfast did not start.
	EngineAll bool `json:"engine_all,omitempty"`
}

// MaxDrainBudget is the longest drain that a request can ask for.
const MaxDrainBudget = time.Hour

// DrainEvent is one line of a drain's answer: a step as it ends, and last the
// report. Error is set if the drain could not be done; a Report beside it says
// how far the drain came.
type DrainEvent struct {
	Step   *holdfast.Step        `json:"step,omitempty"`
	Report *holdfast.DrainReport `json:"report,omitempty"`
	Error  *Error                `json:"error,omitempty"`
}

type nodeHandlers struct{ nodes NodeService }

func nodeRoutes(n NodeService) []route {
	h := nodeHandlers{n}
	return []route{
		{method: "GET", path: "/v1/nodes", id: "listNodes", summary: "All nodes that are up, by id.",
			access: forReader, limit: limitAsk, answer: Nodes{}, handle: asking(h.list)},
		{method: "POST", path: "/v1/node/drain", id: "drainNode", summary: "Hand over everything that this node owns; one line for each step, then one with the report. Continues when the caller disconnects.",
			access: forAdmin, request: DrainRequest{}, answer: DrainEvent{}, media: mediaNDJSON, handle: h.drain},
		{method: "POST", path: "/v1/node/uncordon", id: "uncordonNode", summary: "Let this node accept sessions again after a drain or a cordon.",
			access: forAdmin, limit: limitAsk, request: Empty{}, status: http.StatusNoContent, handle: changing(h.uncordon)},
		{method: "POST", path: "/v1/node/cordon", id: "cordonNode", summary: "Make this node refuse new sessions; it keeps those that it has.",
			access: forAdmin, limit: limitAsk, request: Empty{}, status: http.StatusNoContent, handle: changing(h.cordon)},
		{method: "POST", path: "/v1/nodes/{node}/drain", id: "drainNodeByID", summary: "As drainNode, of the given node.",
			access: forAdmin, at: atItsNode, request: DrainRequest{}, answer: DrainEvent{}, media: mediaNDJSON, handle: h.drain},
		{method: "POST", path: "/v1/nodes/{node}/uncordon", id: "uncordonNodeByID", summary: "As uncordonNode, of the given node.",
			access: forAdmin, at: atItsNode, limit: limitAsk, request: Empty{}, status: http.StatusNoContent, handle: changing(h.uncordon)},
		{method: "POST", path: "/v1/nodes/{node}/cordon", id: "cordonNodeByID", summary: "As cordonNode, of the given node.",
			access: forAdmin, at: atItsNode, limit: limitAsk, request: Empty{}, status: http.StatusNoContent, handle: changing(h.cordon)},
	}
}

func (h nodeHandlers) list(r *http.Request) (Nodes, error) {
	all, err := h.nodes.Nodes(r.Context())
	return Nodes{notNil(all)}, err
}

func (h nodeHandlers) uncordon(*http.Request, Empty) error { return h.nodes.Uncordon() }

func (h nodeHandlers) cordon(*http.Request, Empty) error { return h.nodes.Cordon() }

// drainSlack is how long past its budget a drain's answer may take.
const drainSlack = 30 * time.Second

// drain continues when the caller disconnects.
func (h nodeHandlers) drain(w http.ResponseWriter, r *http.Request) error {
	var q DrainRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	budget := time.Duration(q.Budget)
	if budget < 0 || budget > MaxDrainBudget {
		return badRequest("the budget is %v, it must be between 0 and %v", budget, MaxDrainBudget)
	}
	if budget == 0 {
		budget = MaxDrainBudget
	}
	note(r.Context(), "engine_all", q.EngineAll)
	ctx, cancel := detached(r.Context(), budget+drainSlack)
	defer cancel()
	lines := &events{stream: stream{w: w, media: mediaNDJSON}}
	rep, err := h.nodes.Drain(ctx, q, func(st holdfast.Step) { lines.send(DrainEvent{Step: &st}) })
	rep.Steps, rep.Left = notNil(rep.Steps), notNil(rep.Left)
	note(r.Context(), "dead", rep.Dead)
	note(r.Context(), "left", len(rep.Left))
	return lines.end(err, func(e *Error) any { return DrainEvent{Report: &rep, Error: e} })
}
