// Package survey lists a cluster's nodes with their state in Kubernetes and the
// record of each node's agent.
package survey

import (
	"cmp"
	"context"
	"encoding/json"
	"sort"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/ranking"
	"holdfast/internal/hosts/kube"
)

// Agents write their records to a lease with the node's name, by default in this
// namespace.
const (
	Namespace        = "holdfast"
	RecordAnnotation = "holdfast.dev/record"
)

// ConditionPrefix is the prefix of the types of the conditions that agents set.
const ConditionPrefix = "Holdfast"

// Node is one node.
type Node struct {
	Name     string    `json:"name"`
	Created  time.Time `json:"created"`
	Ready    bool      `json:"ready"`
	Cordoned bool      `json:"cordoned"`
	Kernel   string    `json:"kernel"`
	Runtime  string    `json:"runtime"`
	// Hurts are the reasons for which pods suffer there; empty: none reported.
	Hurts []string `json:"hurts"`
	// Record is the agent's record; null: missing or unreadable.
	Record *ranking.Record `json:"record"`
}

// Look lists the nodes selected by a label selector: first those with problems,
// and among them the older ones. Without the agents' namespace, or the right to
// read it, nodes have no records, and gap gives the reason.
func Look(ctx context.Context, c *kube.Client, selector, namespace string) (list []Node, gap, err error) {
	nodes, err := c.Nodes(ctx, selector)
	if err != nil {
		return nil, nil, err
	}
	records, gap := Records(ctx, c, namespace)
	list = make([]Node, 0, len(nodes))
	for _, n := range nodes {
		list = append(list, nodeOf(n, records[n.Meta.Name]))
	}
	sort.Slice(list, func(i, j int) bool {
		a, b := &list[i], &list[j]
		return cmp.Or(cmp.Compare(len(b.Hurts), len(a.Hurts)), a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) < 0
	})
	return list, gap, nil
}

// nodeOf combines the state of a node in Kubernetes with its record, which may be nil.
func nodeOf(n kube.Node, record *ranking.Record) Node {
	v := Node{
		Name: n.Meta.Name, Created: n.Meta.Created, Ready: n.Ready(), Cordoned: n.Spec.Unschedulable,
		Kernel: n.Status.Info.Kernel, Runtime: n.Status.Info.Runtime, Hurts: []string{}, Record: record,
	}
	if !v.Ready {
		v.Hurts = append(v.Hurts, "not ready")
	}
	for _, c := range n.Status.Conditions {
		if strings.HasPrefix(c.Type, ConditionPrefix) && c.Status == "True" {
			v.Hurts = append(v.Hurts, cmp.Or(c.Reason, c.Type))
		}
	}
	if record != nil && record.Degraded != "" {
		v.Hurts = append(v.Hurts, record.Degraded)
	}
	return v
}

// Records returns the agents' records by node. Leases without a readable record
// are skipped.
func Records(ctx context.Context, c *kube.Client, namespace string) (map[string]*ranking.Record, error) {
	leases, err := c.Leases(ctx, namespace)
	if err != nil {
		return nil, err
	}
	records := make(map[string]*ranking.Record, len(leases))
	for _, l := range leases {
		var r ranking.Record
		if text, ok := l.Meta.Annotations[RecordAnnotation]; ok && json.Unmarshal([]byte(text), &r) == nil {
			records[l.Meta.Name] = &r
		}
	}
	return records, nil
}
