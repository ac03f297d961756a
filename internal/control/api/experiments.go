package api

import (
	"context"
	"net/http"

	"holdfast"
	"holdfast/internal/hosts/spinup/experiment"
)

// Experiments are the experiments of the fleet.
type Experiments interface {
	// List returns the experiments of the agent's configuration. It does not block.
	List() []holdfast.Experiment

	// Report asks all nodes about the spin-ups of an experiment. holdfast.ErrNotFound.
	Report(ctx context.Context, name string) (experiment.Report, error)

	// Stop stops an experiment for good, on all nodes. holdfast.ErrNotFound,
	// holdfast.ErrStore.
	Stop(ctx context.Context, name, why string) error
}

// ExperimentList is the answer to a list of experiments.
type ExperimentList struct {
	Experiments []holdfast.Experiment `json:"experiments"`
}

// StopExperimentRequest says why an experiment is stopped.
type StopExperimentRequest struct {
	// Why is shown to operators; at most 200 bytes.
	Why string `json:"why,omitempty"`
}

const maxWhy = 200

type experimentHandlers struct{ experiments Experiments }

func experimentRoutes(e Experiments) []route {
	h := experimentHandlers{e}
	return []route{
		{method: "GET", path: "/v1/experiments", id: "listExperiments", summary: "The experiments of the agent's configuration.",
			access: forReader, limit: limitAsk, answer: ExperimentList{}, handle: asking(h.list)},
		{method: "GET", path: "/v1/experiments/{name}", id: "getExperiment", summary: "An experiment, with the spin-ups of both arms on all nodes, which are asked at once.",
			access: forReader, limit: limitStats, answer: experiment.Report{}, handle: asking(h.report)},
		{method: "POST", path: "/v1/experiments/{name}/stop", id: "stopExperiment", summary: "Stop an experiment for good: the next boots are as without it. The other nodes know it within 15 s.",
			access: forAdmin, limit: limitAsk, request: StopExperimentRequest{}, status: http.StatusNoContent, handle: changing(h.stop)},
	}
}

func (h experimentHandlers) list(*http.Request) (ExperimentList, error) {
	return ExperimentList{notNil(h.experiments.List())}, nil
}

func (h experimentHandlers) report(r *http.Request) (experiment.Report, error) {
	return h.experiments.Report(r.Context(), r.PathValue("name"))
}

func (h experimentHandlers) stop(r *http.Request, q StopExperimentRequest) error {
	note(r.Context(), "experiment", bounded(r.PathValue("name")))
	if len(q.Why) > maxWhy {
		return badRequest("the reason has %d bytes, at most %d are allowed", len(q.Why), maxWhy)
	}
	return h.experiments.Stop(r.Context(), r.PathValue("name"), q.Why)
}
