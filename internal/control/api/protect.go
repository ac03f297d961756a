package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sort"
	"time"

	"holdfast"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/history"
)

// Protection is what `holdfast protect` did on a host, and what it holds now.
type Protection struct {
	// Totals are of all holds since the host's boot, by backend.
	Totals []HoldTotal `json:"totals"`
	Holds  []Hold      `json:"holds"` // the last 200, the newest first
	// Ports are the installed ports; NoPorts says why they are unknown.
	Ports   []ProtectedPort `json:"ports"`
	NoPorts string          `json:"no_ports,omitempty"`
}

// HoldTotal counts the holds of one backend.
type HoldTotal struct {
	Backend     string          `json:"backend"`
	Holds       int             `json:"holds"`
	Failed      int             `json:"failed"` // holds that ended without a listening server
	Connections int             `json:"connections"`
	Longest     holdfast.Millis `json:"longest_ms"` // longest wait of one connection
}

// Hold is a hold that has ended.
type Hold struct {
	At          time.Time       `json:"at"` // its end
	Ports       []uint16        `json:"ports"`
	Program     string          `json:"program"` // of the command, without directory and arguments
	Backend     string          `json:"backend"`
	Took        holdfast.Millis `json:"took_ms"`
	Connections int             `json:"connections"` // that waited
	Longest     holdfast.Millis `json:"longest_ms"`
	Unanswered  int             `json:"unanswered,omitempty"` // requests that the command interrupted
	Reason      string          `json:"reason"`               // of its end
	Failed      bool            `json:"failed,omitempty"`     // no server listened at the end
	Installed   bool            `json:"installed,omitempty"`
	ExitCode    int             `json:"exit_code"`
}

// ProtectedPort is an installed port.
type ProtectedPort struct {
	Address     string          `json:"address"` // a port, or an address with one
	Listening   bool            `json:"listening"`
	Holds       int             `json:"holds"` // since the keeper started
	Connections int             `json:"connections"`
	Longest     holdfast.Millis `json:"longest_ms"`
	// Since is the begin of the current hold, Waiting its number of waiting
	// connections.
	Since   time.Time `json:"since,omitzero"`
	Waiting int       `json:"waiting,omitempty"`
	Command string    `json:"command,omitempty"` // of the current hold
}

// standingLimit is how long the standing keeper may take to answer.
const standingLimit = time.Second

// ReadProtection reads the history of holds in the directory of the ports' locks
// and asks the keeper that stands by in this process's network namespace.
func ReadProtection(ctx context.Context, dir string, log *slog.Logger) (p Protection, err error) {
	h, err := history.Read(dir)
	if err != nil {
		return p, err
	}
	for _, name := range protect.Names() {
		if t, ok := h.Totals[name]; ok || name != protect.Auto {
			p.Totals = append(p.Totals, HoldTotal{Backend: string(name), Holds: t.Holds, Failed: t.Failed, Connections: t.Connections, Longest: holdfast.Millis(t.Longest)})
		}
	}
	sort.Slice(p.Totals, func(i, j int) bool { return p.Totals[i].Backend < p.Totals[j].Backend })
	for _, x := range slices.Backward(h.Holds) {
		p.Holds = append(p.Holds, Hold{
			At: x.At, Ports: x.Ports, Program: x.Program, Backend: string(x.Backend), Took: holdfast.Millis(x.Took), Connections: x.Held, Longest: holdfast.Millis(x.Longest),
			Unanswered: x.Unanswered, Reason: string(x.Reason), Failed: x.Failed(), Installed: x.Installed, ExitCode: x.ExitCode,
		})
	}
	if p.Ports, err = installedPorts(ctx, dir, log); err != nil {
		p.NoPorts = err.Error()
	}
	return p, nil
}

// installedPorts returns the ports of the standing keeper, nil if none stands by.
func installedPorts(ctx context.Context, dir string, log *slog.Logger) (out []ProtectedPort, err error) {
	ctx, cancel := context.WithTimeout(ctx, standingLimit)
	defer cancel()
	k, err := protect.Dial(ctx, dir, "", log)
	if errors.Is(err, protect.ErrNoneStands) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer k.Close()
	s, err := k.Standing(ctx)
	for _, x := range s.Ports {
		p := ProtectedPort{Address: x.Address.String(), Listening: x.Listening, Holds: x.Holds, Connections: x.Connections, Longest: holdfast.Millis(x.Longest)}
		if x.Now != nil {
			p.Since, p.Waiting, p.Command = x.Now.Since, x.Now.Stats.Waiting, x.Now.Command
		}
		out = append(out, p)
	}
	return out, err
}

func protectRoutes(read func(context.Context) (Protection, error)) []route {
	return []route{{method: "GET", path: "/v1/protect", id: "protection", summary: "Past holds of restarting servers on this host since its boot, and current holds.",
		access: forReader, limit: limitAsk, answer: Protection{}, handle: asking(func(r *http.Request) (Protection, error) {
			p, err := read(r.Context())
			p.Totals, p.Holds, p.Ports = notNil(p.Totals), notNil(p.Holds), notNil(p.Ports)
			for i := range p.Holds {
				p.Holds[i].Ports = notNil(p.Holds[i].Ports)
			}
			return p, err
		})}}
}
