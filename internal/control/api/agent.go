package api

import (
	"context"
	"net/http"
	"time"

	"holdfast"
)

// AgentService is the life of the agent's process.
type AgentService interface {
	// Ready returns no error when the agent can serve sessions, and its weight for load
	// balancers, 1 to 100.
	Ready(ctx context.Context) (weight int, err error)

	// StopAgent makes the agent end, and returns at once. With keep the
	// containers stay for the next agent.
	StopAgent(keep bool) error

	// Upgrade starts the program on disk as the next agent of this host, and
	// returns when the next agent takes over: this agent stops serving soon
	// after. If ctx ends first, or with an error, nothing has changed. trial is
	// how long this agent stands by. holdfast.ErrBusy while another upgrade or a
	// drain runs.
	Upgrade(ctx context.Context, trial time.Duration) (Upgrade, error)

	// LastUpgrade returns the state of the last upgrade.
	LastUpgrade() Upgrade
}

// StopAgentRequest asks the agent to end.
type StopAgentRequest struct {
	// Keep leaves the containers to the next agent.
	Keep bool `json:"keep,omitempty"`
}

// UpgradeState is the progress of the replacement of an agent by another build.
type UpgradeState string

// The states. An upgrade that begins ends as done or failed.
const (
	UpgradeNone     UpgradeState = "none"      // there was no upgrade
	UpgradeUnderWay UpgradeState = "under_way" // begun; the old agent serves, or clients wait at the moment
	UpgradeOnTrial  UpgradeState = "on_trial"  // the new agent serves, the old one stands by
	UpgradeDone     UpgradeState = "done"
	UpgradeFailed   UpgradeState = "failed" // the old agent serves again, or still
)

// Upgrade is the last replacement of an agent by another build.
type Upgrade struct {
	ID       string          `json:"id,omitempty"`
	State    UpgradeState    `json:"state"`
	From     Build           `json:"from"`
	To       Build           `json:"to"`
	Steps    []holdfast.Step `json:"steps"`
	Held     holdfast.Millis `json:"held_ms"`  // longest time that a connect waited
	Sessions int             `json:"sessions"` // that the serving agent took over
	// Connections is the number of open connections of clients that it took over.
	Connections int    `json:"connections"`
	Error       string `json:"error,omitempty"` // why it failed
	Advice      string `json:"hint,omitempty"`  // what to do about it
}

// Build is one agent of an upgrade.
type Build struct {
	Version string `json:"version"`
	PID     int    `json:"pid"`
}

// Bounds and default of a trial.
const (
	DefaultTrial = 5 * time.Second
	MaxTrial     = 10 * time.Minute
)

// UpgradeRequest asks an agent to let the program on disk take its place.
type UpgradeRequest struct {
	// Trial is how long the old agent stands by to serve again if the new agent
	// ends, up to MaxTrial; absent is DefaultTrial.
	Trial *holdfast.Millis `json:"trial_ms,omitempty"`
}

type agentHandlers struct{ agent AgentService }

func agentRoutes(a AgentService) []route {
	h := agentHandlers{a}
	return []route{
		{method: "GET", path: "/readyz", id: "readyz", summary: "The agent can serve sessions.",
			access: forAnyone, limit: limitAsk, answer: Health{}, handle: h.ready, query: []param{
				{"weight", "without a value: over HTTP/1, the weight is also in the status line's reason phrase, as HAProxy's agent check reads it: `HTTP/1.1 200 73%`, or `HTTP/1.1 503 0%`", oneOf{}}}},
		{method: "POST", path: "/v1/agent/stop", id: "stopAgent", summary: "Make the agent end; answers before it does.",
			access: forAdmin, limit: limitAsk, request: StopAgentRequest{}, status: http.StatusNoContent, handle: changing(h.stop)},
		{method: "POST", path: "/v1/agent/upgrade", id: "upgradeAgent", summary: "Replace this agent by the program on disk; answers when the new agent takes over. If the caller disconnects before, the upgrade is cancelled.",
			access: forAdmin, limit: limitStop, request: UpgradeRequest{}, answer: Upgrade{}, handle: doing(h.upgrade)},
		{method: "GET", path: "/v1/agent/upgrade", id: "lastUpgrade", summary: "The state of this agent's last upgrade.",
			access: forReader, limit: limitAsk, answer: Upgrade{}, handle: asking(h.lastUpgrade)},
	}
}

func (h agentHandlers) ready(w http.ResponseWriter, r *http.Request) error {
	weighted := r.URL.Query().Has("weight")
	if v := r.URL.Query().Get("weight"); v != "" {
		return badQuery("weight", v, "without a value")
	}
	weight, err := h.agent.Ready(r.Context())
	if err != nil {
		if e := ErrorOf(err); e.Code == CodeInternal {
			err = &Error{Code: CodeNotReady, Message: e.Message, Advice: e.Advice}
		}
	}
	if weighted && r.ProtoMajor == 1 {
		return answerWeighted(w, r, weight, err)
	}
	if err != nil {
		return err
	}
	return writeJSON(w, Health{Status: "ok", Weight: weight})
}

func (h agentHandlers) stop(r *http.Request, q StopAgentRequest) error {
	note(r.Context(), "keep", q.Keep)
	return h.agent.StopAgent(q.Keep)
}

func (h agentHandlers) upgrade(r *http.Request, q UpgradeRequest) (Upgrade, error) {
	trial := DefaultTrial
	if q.Trial != nil {
		trial = time.Duration(*q.Trial)
	}
	if trial < 0 || trial > MaxTrial {
		return Upgrade{}, badRequest("the trial is %v, it must be between 0 and %v", trial, MaxTrial)
	}
	u, err := h.agent.Upgrade(r.Context(), trial)
	if err == nil {
		note(r.Context(), "to", bounded(u.To.Version))
	}
	u.Steps = notNil(u.Steps)
	return u, err
}

func (h agentHandlers) lastUpgrade(*http.Request) (Upgrade, error) {
	u := h.agent.LastUpgrade()
	u.Steps = notNil(u.Steps)
	return u, nil
}
