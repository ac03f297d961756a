package client

import (
	"context"
	"net/http"
	"net/url"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/hosts/spinup/experiment"
)

// Experiments returns the experiments of the agent's configuration.
func (c *Client) Experiments(ctx context.Context) ([]holdfast.Experiment, error) {
	a, err := get[api.ExperimentList](ctx, c, "/v1/experiments")
	return a.Experiments, err
}

// Experiment returns an experiment with the spin-ups of both arms. holdfast.ErrNotFound.
func (c *Client) Experiment(ctx context.Context, name string) (experiment.Report, error) {
	return get[experiment.Report](ctx, c, "/v1/experiments/"+url.PathEscape(name))
}

// StopExperiment stops an experiment for good. holdfast.ErrNotFound.
func (c *Client) StopExperiment(ctx context.Context, name, why string) error {
	return c.ask(ctx, http.MethodPost, "/v1/experiments/"+url.PathEscape(name)+"/stop", api.StopExperimentRequest{Why: why}, nil)
}
