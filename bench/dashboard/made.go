// Package dashboard is the experiment of `holdfast bench dashboard`: the dashboard's
// pages for a large generated fleet.
package dashboard

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/dashboard"
	"holdfast/internal/hosts/spinup"
)

// Fleet is a generated fleet, for measurements and for screenshots of pages. Any
// goroutine may call its methods.
type Fleet struct {
	mu       sync.Mutex
	rand     *rand.Rand
	made     time.Time
	nodes    []holdfast.Node
	sessions []api.Session
	spinups  []spinup.Record // newest first; constant
}

// NewFleet generates a fleet. Equal seeds generate equal fleets, except for times.
func NewFleet(nodes, sessions int, seed uint64) *Fleet {
	f := &Fleet{rand: rand.New(rand.NewPCG(seed, 1))}
	now := time.Now()
	f.made = now
	for i := range nodes {
		n := holdfast.Node{
			ID: holdfast.NodeID(fmt.Sprintf("web-%04d", i+1)), Version: "v1.4.2", Max: 500, Slots: 8,
			Address: fmt.Sprintf("10.0.%d.%d:7070", i/250, i%250+1),
			CPULoad: f.rand.Float64() * .8, Pressure: f.rand.Float64() * .3,
			Memory: holdfast.Memory{Total: 64 << 30, Available: f.rand.Int64N(60 << 30)},
			Since:  now.Add(-time.Duration(f.rand.IntN(2000)) * time.Hour), SeenAt: now,
		}
		switch i % 100 {
		case 7:
			n.Draining = true
		case 23:
			n.Degraded, n.DegradedSince = "memcg-leak: 41,200 dying memory cgroups make every read of memory.stat take 180 ms", now.Add(-time.Hour)
		case 61:
			n.Trouble = "the engine does not answer"
		}
		f.nodes = append(f.nodes, n)
	}
	for i := range sessions {
		f.sessions = append(f.sessions, f.session(i, now))
	}
	f.makeSpinups(now)
	return f
}

func (f *Fleet) session(i int, now time.Time) api.Session {
	n := &f.nodes[f.rand.IntN(len(f.nodes))]
	n.Sessions++
	ms := func(most int) holdfast.Millis {
		return holdfast.Millis(time.Duration(f.rand.IntN(most*1000)) * time.Microsecond)
	}
	s := api.Session{Owner: holdfast.Owner{
		Key: holdfast.SessionKey(fmt.Sprintf("user-%05d", i+1)), Node: n.ID, Epoch: holdfast.Epoch(4000 + i), Revision: holdfast.Revision(4002 + i),
		State: holdfast.Ready, Template: []string{"python", "node", "postgres"}[i%3],
		ContainerID: fmt.Sprintf("%064x", 1+i), Address: fmt.Sprintf("172.17.%d.%d:8080", i/250%250, i%250+2),
		ClaimedAt: now.Add(-time.Duration(f.rand.IntN(72*3600)) * time.Second),
		Boot:      holdfast.Phases{Claim: ms(5), Create: ms(300), Start: ms(400), Ready: ms(900)},
	}, Connections: f.rand.IntN(5)}
	s.ReadyAt = s.ClaimedAt.Add(time.Duration(s.Boot.Total()))
	switch {
	case i%97 == 50:
		n.Sessions--
		s.State, s.Boot, s.ReadyAt, s.Connections, s.ContainerID, s.Address = holdfast.IsSuspended, holdfast.Phases{}, time.Time{}, 0, "", ""
		s.Suspended = &holdfast.Suspended{Key: s.Key, Epoch: s.Epoch, Node: n.ID, Template: s.Template, TakenAt: s.ClaimedAt, Until: now.Add(24 * time.Hour), Bytes: int64(f.rand.IntN(900)) << 20}
	case n.Draining && i%2 == 0:
		s.State = holdfast.Leaving
	case i%211 == 0:
		s.State, s.Boot, s.ReadyAt, s.ClaimedAt = holdfast.Starting, holdfast.Phases{}, time.Time{}, now
		n.Boots++
	}
	return s
}

// Change changes the loads of all nodes and the states of 1 % of the sessions, as much
// as in a few seconds of a real fleet.
func (f *Fleet) Change() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.nodes {
		f.nodes[i].CPULoad = f.rand.Float64()
	}
	for range len(f.sessions) / 100 {
		s := &f.sessions[f.rand.IntN(len(f.sessions))]
		if s.Suspended != nil {
			continue
		}
		s.State = []holdfast.State{holdfast.Starting, holdfast.Ready, holdfast.Leaving}[f.rand.IntN(3)]
	}
}

// Source returns the data source for the pages.
func (f *Fleet) Source() dashboard.Source {
	return dashboard.Source{
		Version: api.Version{Version: "v1.4.2", Node: f.nodes[0].ID}, Nodes: f.Nodes, Sessions: f.Sessions,
		Commands: func(context.Context, holdfast.SessionKey) ([]holdfast.Command, error) { return nil, nil },
		Endings: func(context.Context, holdfast.SessionKey, int) (holdfast.EndingReport, error) {
			return holdfast.EndingReport{}, nil
		},
		Spinups: f.Spinups, Spinup: f.Spinup, SlowRules: spinup.DefaultRules, GCStatus: f.GCStatus, GCHistory: f.GCHistory, Protection: f.Protection,
		DoctorStatus: f.DoctorStatus, DoctorHistory: f.DoctorHistory, Ranking: f.DoctorFleet, Recordings: f.Recordings, Recording: f.Recording,
	}
}

// Nodes lists all nodes, by id.
func (f *Fleet) Nodes(context.Context) ([]holdfast.Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.nodes), nil
}

// Sessions lists all sessions, by key.
func (f *Fleet) Sessions(context.Context) ([]api.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.sessions), nil
}
