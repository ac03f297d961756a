package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"holdfast"
)

// fleetData are the figures over the fleet.
type fleetData struct {
	Nodes      string
	Conditions []conditionCount // all conditions
	Sessions   figure
	Booting    figure
	Leaving    int
	Suspended  string // suspended sessions; "" if there are none
	CPU        string // busy share, over all nodes
	Memory, Of string // free memory, and all memory
	Trouble    string // why the data is old
	Age        string
}

type conditionCount struct {
	Name condition
	N    int
	Path string
}

// nodeRow is one node.
type nodeRow struct {
	holdfast.Node
	Condition       condition
	Leaving         int
	CPU, Wait, Free figure
}

type nodesData struct {
	Rows []nodeRow
	Now  time.Time
	pager
}

func fleetParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	st := d.state(ctx)
	leaving := leavingByNode(st)
	sum := fleetFigures(st, leaving)
	var rows []holdfast.Node
	for _, n := range st.nodes {
		if matchesNode(v.query, conditionOf(n, leaving[n.ID]), n) {
			rows = append(rows, n)
		}
	}
	sort.SliceStable(rows, func(i, j int) bool {
		a, b := rows[i], rows[j]
		return cmp.Or(cmp.Compare(conditionOf(a, leaving[a.ID]).rank(), conditionOf(b, leaving[b.ID]).rank()), cmp.Compare(a.ID, b.ID)) < 0
	})
	shown, where := paginate(rows, "/", v.query)
	list := nodesData{Now: st.now(), pager: where}
	for _, n := range shown {
		list.Rows = append(list.Rows, rowOf(n, leaving[n.ID]))
	}
	return []part{{"notice", oldData(sum.Trouble, sum.Age)}, {"figures", fleetTotals(sum)}, {"list", nodeList(list)}}, nil
}

// matchesNode reports whether a query selects the node.
func matchesNode(q query, c condition, n holdfast.Node) bool {
	if q.state != "" && q.state != string(c) {
		return false
	}
	return q.search == "" || slices.ContainsFunc([]string{string(n.ID), n.Address, n.Version, n.Trouble, n.Degraded},
		func(s string) bool { return strings.Contains(strings.ToLower(s), strings.ToLower(q.search)) })
}

func leavingByNode(st *state) map[holdfast.NodeID]int {
	out := map[holdfast.NodeID]int{}
	for _, s := range st.sessions {
		if s.State == holdfast.Leaving {
			out[s.Node]++
		}
	}
	return out
}

func fleetFigures(st *state, leaving map[holdfast.NodeID]int) fleetData {
	d := fleetData{Nodes: thousands(len(st.nodes)), Age: age(st.now(), st.at)}
	if st.err != nil {
		d.Trouble = st.err.Error()
	}
	by := map[condition]int{}
	var busy float64
	var free, memory int64
	booting := 0
	for _, n := range st.nodes {
		by[conditionOf(n, leaving[n.ID])]++
		busy += n.CPULoad
		free += n.Memory.Available
		memory += n.Memory.Total
		booting += n.Boots
	}
	for _, c := range conditions() {
		if by[c] > 0 {
			d.Conditions = append(d.Conditions, conditionCount{c, by[c], link("/", "state", string(c))})
		}
	}
	for _, n := range leaving {
		d.Leaving += n
	}
	served := 0 // a suspended session has no owner, and no node counts it
	for _, s := range st.sessions {
		if s.State != holdfast.IsSuspended {
			served++
		}
	}
	if n := len(st.sessions) - served; n > 0 {
		d.Suspended = thousands(n)
	}
	d.Sessions = count("holdfast_node_sessions", served)
	d.Booting = count("holdfast_node_boots", booting)
	if len(st.nodes) > 0 {
		d.CPU = percent(busy / float64(len(st.nodes)))
	}
	d.Memory, d.Of = size(free), size(memory)
	return d
}

func rowOf(n holdfast.Node, leaving int) nodeRow {
	return nodeRow{
		Node: n, Condition: conditionOf(n, leaving), Leaving: leaving,
		CPU:  number(on(n, "holdfast_node_cpu_busy_ratio"), n.CPULoad, percent(n.CPULoad)),
		Wait: number(on(n, "holdfast_node_cpu_pressure_ratio"), n.Pressure, percent(n.Pressure)),
		Free: number(on(n, "holdfast_node_memory_available_bytes"), float64(n.Memory.Available), size(n.Memory.Available)),
	}
}

// on names a metric of the agent on the node.
func on(n holdfast.Node, metric string) string { return fmt.Sprintf("%s{node=%q}", metric, n.ID) }
