package mcp

import (
	"context"
	"time"

	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/gc"
)

// planLimit is the agent's own limit for a plan.
const planLimit = 2 * time.Minute

type limitQuery struct {
	Limit int `json:"limit,omitempty" jsonschema:"at most that many"`
}

// deletion is one object that a collection would delete.
type deletion struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Rule    string `json:"rule"`
	Reason  string `json:"reason"`
	LastUse string `json:"last_use,omitempty"`
	Bytes   int64  `json:"bytes" jsonschema:"expected to be freed; below 0: unknown"`
}

// plan is what a collection would do.
type plan struct {
	Free      int64      `json:"disk_free_bytes"`
	Total     int64      `json:"disk_bytes"`
	Level     string     `json:"level,omitempty"`
	Count     int        `json:"count" jsonschema:"objects that would be deleted"`
	Bytes     int64      `json:"bytes" jsonschema:"sum of the known sizes"`
	Unknown   int        `json:"unknown" jsonschema:"objects whose size is unknown"`
	Deletions []deletion `json:"deletions" jsonschema:"in the order of the collection"`
	Omitted   int        `json:"omitted,omitempty"`
	Notices   []string   `json:"notices,omitempty"`
}

func gcPlan(ctx context.Context, c *client.Client, q limitQuery) (plan, error) {
	p, err := c.GCPlan(ctx)
	if err != nil {
		return plan{}, err
	}
	some, omitted := first(p.Deletions, q.Limit)
	out := plan{Free: p.Disk.Free, Total: p.Disk.Total, Level: levelOf(p), Count: len(p.Deletions), Bytes: p.Bytes, Unknown: p.Unknown, Omitted: omitted, Deletions: make([]deletion, 0, len(some))}
	for _, d := range some {
		out.Deletions = append(out.Deletions, deletion{Kind: string(d.Kind), Name: clip(d.Name, maxName), Rule: d.Rule, Reason: clip(d.Reason, maxName), LastUse: stamp(d.LastUse), Bytes: d.Bytes})
	}
	notices, _ := first(p.Notices, 10)
	for _, n := range notices {
		out.Notices = append(out.Notices, clip(n, maxName))
	}
	return out, nil
}

func levelOf(p gc.Proposal) string { return string(p.Level) }

// hold is a hold of connections that has ended.
type hold struct {
	At          string   `json:"at"`
	Ports       []uint16 `json:"ports"`
	Program     string   `json:"program" jsonschema:"that restarted the server"`
	Backend     string   `json:"backend"`
	Millis      float64  `json:"took_ms"`
	Connections int      `json:"connections" jsonschema:"that waited"`
	Longest     float64  `json:"longest_wait_ms"`
	Reason      string   `json:"reason" jsonschema:"of its end"`
	Failed      bool     `json:"failed" jsonschema:"no server listened at the end"`
	ExitCode    int      `json:"exit_code"`
}

type port struct {
	Address     string  `json:"address"`
	Listening   bool    `json:"listening"`
	Holds       int     `json:"holds"`
	Connections int     `json:"connections"`
	Longest     float64 `json:"longest_wait_ms"`
	Waiting     int     `json:"waiting,omitempty" jsonschema:"connections of the hold that goes on now"`
}

type protection struct {
	Holds   []hold `json:"holds" jsonschema:"the newest first"`
	Omitted int    `json:"omitted,omitempty"`
	Ports   []port `json:"ports" jsonschema:"installed ports"`
	NoPorts string `json:"no_ports,omitempty" jsonschema:"why the installed ports are unknown"`
}

// maxPorts is the most installed ports of one result.
const maxPorts = 50

func protectHistory(ctx context.Context, c *client.Client, q limitQuery) (protection, error) {
	p, err := c.Protection(ctx)
	if err != nil {
		return protection{}, err
	}
	some, omitted := first(p.Holds, q.Limit)
	out := protection{Holds: make([]hold, 0, len(some)), Omitted: omitted, Ports: []port{}, NoPorts: clip(p.NoPorts, maxError)}
	for _, h := range some {
		ports, _ := first(h.Ports, maxPorts)
		out.Holds = append(out.Holds, hold{At: stamp(h.At), Ports: append([]uint16{}, ports...), Program: clip(h.Program, maxName), Backend: h.Backend, Millis: millis(h.Took),
			Connections: h.Connections, Longest: millis(h.Longest), Reason: clip(h.Reason, maxName), Failed: h.Failed, ExitCode: h.ExitCode})
	}
	ports, _ := first(p.Ports, maxPorts)
	for _, one := range ports {
		out.Ports = append(out.Ports, port{Address: one.Address, Listening: one.Listening, Holds: one.Holds, Connections: one.Connections, Longest: millis(one.Longest), Waiting: one.Waiting})
	}
	return out, nil
}

func hostTools(s *Server) []tool {
	tools := []tool{
		define(about{name: "gc_plan", title: "Plan a garbage collection", text: "What garbage collection would delete now, and why. Nothing is deleted.", kind: reads, limit: planLimit,
			bounds: map[string]bound{"limit": between(1, 200, 20)}}, gcPlan),
		define(about{name: "protect_history", title: "List protected restarts", text: "Past restarts of servers on this host with held connections, and the ports that are protected now.", kind: reads, limit: askLimit,
			bounds: map[string]bound{"limit": between(1, 200, 20)}}, protectHistory),
		define(about{name: "doctor_status", title: "The doctor's findings", text: "What slows down containers on a node now, by the agent's doctor: the culprit, the evidence and the cure.", kind: reads, limit: askLimit,
			bounds: map[string]bound{"node": upTo(253), "limit": between(1, 50, 10)}}, doctorStatus),
	}
	if s.o.Examine != nil {
		tools = append(tools, define(about{name: "doctor_run", title: "Examine this host", kind: reads, limit: maxExamine + askLimit,
			text:   "Observe this host for some seconds, more closely than doctor_status, and report what slows down its containers. Nothing is changed.",
			bounds: map[string]bound{"seconds": between(1, int(maxExamine/time.Second), 15), "limit": between(1, 50, 10)}}, s.examine))
	}
	return tools
}
