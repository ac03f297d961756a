package api

import (
	"context"
	"net/http"
	"time"

	"holdfast"
)

// Protector is what a Backend knows of `holdfast protect` on its host.
type Protector interface {
	// Protection tells how holds went, and what is held now as far as ports are
	// installed.
	Protection(ctx context.Context) (Protection, error)
}

// Protection is how holds went on a host.
type Protection struct {
	// Totals are of all holds since the host's boot, by backend.
	Totals []HoldTotal `json:"totals"`
	Holds  []Hold      `json:"holds"` // the last 200, the newest first
	// Ports are installed; NoPorts says why that is not known.
	Ports   []ProtectedPort `json:"ports"`
	NoPorts string          `json:"no_ports,omitempty"`
}

// HoldTotal counts the holds of one backend.
type HoldTotal struct {
	Backend     string          `json:"backend"`
	Holds       int             `json:"holds"`
	Failed      int             `json:"failed"` // that ended without a server that listens
	Connections int             `json:"connections"`
	Longest     holdfast.Millis `json:"longest_ms"` // that one of them waited
}

// Hold is how one ended.
type Hold struct {
	At          time.Time       `json:"at"` // its end
	Ports       []uint16        `json:"ports"`
	Program     string          `json:"program"` // the command's, without directory and arguments
	Backend     string          `json:"backend"`
	Took        holdfast.Millis `json:"took_ms"`
	Connections int             `json:"connections"` // that waited
	Longest     holdfast.Millis `json:"longest_ms"`
	Unanswered  int             `json:"unanswered,omitempty"` // requests that the command cut off
	Reason      string          `json:"reason"`               // of its end
	Failed      bool            `json:"failed,omitempty"`     // no server listened then
	Installed   bool            `json:"installed,omitempty"`
	ExitCode    int             `json:"exit_code"`
}

// ProtectedPort is a port that a keeper stands by for.
type ProtectedPort struct {
	Address     string          `json:"address"` // a port, or an address with one
	Listening   bool            `json:"listening"`
	Holds       int             `json:"holds"` // since the keeper stands by
	Connections int             `json:"connections"`
	Longest     holdfast.Millis `json:"longest_ms"`
	// Since is when the hold began that stands now, Waiting how many wait in it.
	Since   time.Time `json:"since,omitzero"`
	Waiting int       `json:"waiting,omitempty"`
	Command string    `json:"command,omitempty"` // whose hold it is
}

func protectRoutes() []route {
	return []route{{method: "GET", path: "/v1/protect", id: "protection", summary: "How holds of restarting servers went on this host since its boot, and which stand now.",
		access: forReader, limit: limitAsk, answer: Protection{}, handle: (*server).protection}}
}

func (s *server) protection(w http.ResponseWriter, r *http.Request) error {
	p, err := s.b.Protection(r.Context())
	if err != nil {
		return err
	}
	p.Totals, p.Holds, p.Ports = notNil(p.Totals), notNil(p.Holds), notNil(p.Ports)
	for i := range p.Holds {
		p.Holds[i].Ports = notNil(p.Holds[i].Ports)
	}
	return writeJSON(w, p)
}
