package api

import (
	"fmt"
	"net/http"
	"time"

	"holdfast"
)

// UpgradeState is where the replacement of an agent by another build is.
type UpgradeState string

// The states. What begins ends as done or failed.
const (
	UpgradeNone     UpgradeState = "none"      // this agent knows of none
	UpgradeUnderWay UpgradeState = "under_way" // begun; the old agent serves, or nobody does at the moment
	UpgradeOnTrial  UpgradeState = "on_trial"  // the new agent serves, the old one stands by
	UpgradeDone     UpgradeState = "done"
	UpgradeFailed   UpgradeState = "failed" // the old agent serves again, or still
)

// Upgrade is how the last replacement of an agent by another build went.
type Upgrade struct {
	ID       string          `json:"id,omitempty"`
	State    UpgradeState    `json:"state"`
	From     Build           `json:"from"`
	To       Build           `json:"to"`
	Steps    []holdfast.Step `json:"steps"`
	Held     holdfast.Millis `json:"held_ms"`         // that connects waited for, at most
	Sessions int             `json:"sessions"`        // that the serving agent has from the one before
	Error    string          `json:"error,omitempty"` // why it failed
	Advice   string          `json:"hint,omitempty"`  // what to do about it
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

// UpgradeRequest asks an agent to have the program on disk take its place.
type UpgradeRequest struct {
	// Trial is how long the old agent stands by to serve again, in case that
	// the new one ends, up to MaxTrial; absent is DefaultTrial.
	Trial *holdfast.Millis `json:"trial_ms,omitempty"`
}

func upgradeRoutes() []route {
	return []route{
		{method: "POST", path: "/v1/agent/upgrade", id: "upgradeAgent", summary: "Have the program on disk take this agent's place; answers when the new agent is there and takes over. Until then it is called off when the caller leaves.",
			access: forAdmin, limit: limitStop, request: UpgradeRequest{}, answer: Upgrade{}, handle: (*server).upgrade},
		{method: "GET", path: "/v1/agent/upgrade", id: "lastUpgrade", summary: "How the last upgrade of this agent went, or goes.",
			access: forReader, limit: limitAsk, answer: Upgrade{}, handle: (*server).lastUpgrade},
	}
}

func (s *server) upgrade(w http.ResponseWriter, r *http.Request) error {
	var q UpgradeRequest
	if err := decode(w, r, &q); err != nil {
		return err
	}
	trial := DefaultTrial
	if q.Trial != nil {
		trial = time.Duration(*q.Trial)
	}
	if trial < 0 || trial > MaxTrial {
		return &Error{Code: CodeBadRequest, Message: fmt.Sprintf("the trial is %v, it has to be between 0 and %v", trial, MaxTrial)}
	}
	u, err := s.b.Upgrade(r.Context(), trial)
	if err != nil {
		return err
	}
	note(r.Context(), "to", bounded(u.To.Version))
	u.Steps = notNil(u.Steps)
	return writeJSON(w, u)
}

func (s *server) lastUpgrade(w http.ResponseWriter, _ *http.Request) error {
	u := s.b.LastUpgrade()
	u.Steps = notNil(u.Steps)
	return writeJSON(w, u)
}
