package mcp

import (
	"context"
	"slices"

	"holdfast"
	"holdfast/internal/control/api/client"
)

// node is a node of the fleet.
type node struct {
	ID        string  `json:"id"`
	Version   string  `json:"version,omitempty"`
	Sessions  int     `json:"sessions"`
	Max       int     `json:"max_sessions,omitempty" jsonschema:"absent: no limit"`
	Starting  int     `json:"starting" jsonschema:"containers that start, or wait to start"`
	Warm      int     `json:"warm" jsonschema:"containers that wait for a session"`
	Draining  bool    `json:"draining" jsonschema:"accepts no new session"`
	CPU       float64 `json:"cpu_load" jsonschema:"busy share of all CPUs, 0 to 1"`
	Pressure  float64 `json:"cpu_pressure" jsonschema:"share of the last 10 s in which a task waited for a CPU, 0 to 1"`
	Available int64   `json:"memory_available_bytes"`
	Memory    int64   `json:"memory_bytes"`
	Trouble   string  `json:"trouble,omitempty" jsonschema:"why it should get no new session"`
	Degraded  string  `json:"degraded,omitempty" jsonschema:"why containers are slow on it"`
	Since     string  `json:"agent_since,omitempty"`
}

type nodesQuery struct {
	Limit int    `json:"limit,omitempty" jsonschema:"at most that many"`
	After string `json:"after,omitempty" jsonschema:"begin after this node: next of the previous page"`
}

type nodeList struct {
	Nodes []node `json:"nodes"`
	Count int    `json:"count" jsonschema:"nodes on all pages"`
	Next  string `json:"next,omitempty" jsonschema:"after of the next page; absent on the last one"`
}

func nodes(ctx context.Context, c *client.Client, q nodesQuery) (list nodeList, err error) {
	all, err := c.Nodes(ctx)
	if err != nil {
		return list, err
	}
	list.Count = len(all)
	rest := slices.DeleteFunc(all, func(n holdfast.Node) bool { return q.After != "" && string(n.ID) <= q.After })
	page, more := first(rest, q.Limit)
	list.Nodes = make([]node, 0, len(page))
	for _, n := range page {
		list.Nodes = append(list.Nodes, node{ID: string(n.ID), Version: n.Version, Sessions: n.Sessions, Max: n.Max, Starting: n.Boots, Warm: n.Warm, Draining: n.Draining,
			CPU: rounded(n.CPULoad), Pressure: rounded(n.Pressure), Available: n.Memory.Available, Memory: n.Memory.Total,
			Trouble: clip(n.Trouble, maxName), Degraded: clip(n.Degraded, maxName), Since: stamp(n.Since)})
	}
	if more > 0 {
		list.Next = list.Nodes[len(page)-1].ID
	}
	return list, nil
}

// agentStatus is the state of the agent behind the tools.
type agentStatus struct {
	Node     string `json:"node,omitempty"`
	Version  string `json:"version"`
	Ready    bool   `json:"ready" jsonschema:"it can serve sessions"`
	NotReady string `json:"not_ready,omitempty" jsonschema:"why it cannot"`
	Hint     string `json:"hint,omitempty"`
}

type none struct{}

func status(ctx context.Context, c *client.Client, _ none) (s agentStatus, err error) {
	v, err := c.Version(ctx)
	if err != nil {
		return s, err
	}
	s.Node, s.Version = string(v.Node), v.Version
	if err := c.Ready(ctx); err != nil {
		s.NotReady, s.Hint = clip(err.Error(), maxError), clip(holdfast.HintOf(err), maxError)
	}
	s.Ready = s.NotReady == ""
	return s, nil
}

func nodeTools() []tool {
	return []tool{
		define(about{name: "agent_status", title: "Show the agent", text: "Show the agent's node and version, and whether it is ready to serve sessions.", kind: reads, limit: askLimit}, status),
		define(about{name: "node_list", title: "List nodes", text: "List the nodes of the fleet that are up, with their load.", kind: reads, limit: askLimit,
			bounds: map[string]bound{"limit": between(1, 100, 20), "after": upTo(253)}}, nodes),
	}
}
