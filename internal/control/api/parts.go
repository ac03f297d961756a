package api

import (
	"context"
	"slices"
	"time"
)

// Parts are the parts of an agent that the API serves. Each part has a file in
// this package with its routes, its handlers and, if tests replace the part,
// the interface that the handlers need.
//
// Any goroutine may call the methods of a part. They return when ctx is done. An
// error that a caller decides by wraps a sentinel of the root package,
// *holdfast.KeyError or *holdfast.BootError; any other error is answered as
// "internal". A method that can only act on this node's sessions returns a
// *holdfast.ElsewhereError for a session of another node. The request is then
// passed on once.
type Parts struct {
	Version    Version
	Agent      AgentService
	Sessions   SessionService
	Forks      Forks
	History    History
	Commands   CommandService
	Files      FileService
	Forwards   ForwardService
	Nodes      NodeService
	Replacer   Replacer
	Groups     Groups
	Jobs       Jobs
	Prefetcher Prefetcher
	Spinups    Spinups
	// FleetSpinups is nil if the program knows no other hosts.
	FleetSpinups FleetSpinups
	UnderWay     UnderWay
	Experiments  Experiments
	GC           Collector
	Protection   func(ctx context.Context) (Protection, error)
	Doctor       Doctor     // DoctorOff if the doctor is switched off
	Recordings   Recordings // likewise

	pingEvery time.Duration // between pings of an exec stream; 0 is pingEvery
}

// routes lists the routes of all parts.
func (p Parts) routes() []route {
	return slices.Concat(
		agentRoutes(p.Agent),
		sessionRoutes(p.Sessions, p.Forks, p.Groups),
		forkRoutes(p.Forks, p.Groups),
		historyRoutes(p.History),
		commandRoutes(p.Commands, p.Sessions, p.pingEvery),
		fileRoutes(p.Files),
		forwardRoutes(p.Forwards, p.pingEvery),
		nodeRoutes(p.Nodes),
		replaceRoutes(p.Replacer, p.Sessions, p.Nodes, p.Groups),
		groupRoutes(p.Groups),
		jobRoutes(p.Jobs, p.Version.Node, p.pingEvery),
		prefetchRoutes(p.Prefetcher),
		spinupRoutes(p.Spinups, p.FleetSpinups, p.UnderWay),
		experimentRoutes(p.Experiments),
		gcRoutes(p.GC),
		protectRoutes(p.Protection),
		doctorRoutes(p.Doctor),
		recordingRoutes(p.Recordings),
	)
}
