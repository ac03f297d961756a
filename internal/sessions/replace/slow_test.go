package replace

import (
	"testing"
	"time"

	"holdfast"
)

func came(node holdfast.NodeID, template string, init, start, ready time.Duration) holdfast.Replacement {
	return holdfast.Replacement{Key: "k", Template: template, From: "n0", To: node,
		Boot: holdfast.Phases{Init: holdfast.Millis(init), Start: holdfast.Millis(start), Ready: holdfast.Millis(ready)}}
}

// The figures are the published ones of a healthy host and of a host that was 30 times
// slower. The slow host has most of the sessions here, and must not determine the median.
func TestSlowNodesStandOut(t *testing.T) {
	const s = time.Second
	rows := []holdfast.Replacement{
		came("slow", "mysql", 2120*s, 1104*s, 0), came("slow", "mysql", 2000*s, 1000*s, 0), came("slow", "mysql", 2200*s, 1000*s, 0),
		came("fine", "mysql", 74*s, 17*s, 0), came("good", "mysql", 80*s, 16*s, 0),
		// A slow template does not make its node slow.
		came("good", "big", 900*s, 200*s, 0), came("good", "big", 900*s, 200*s, 0),
		// Very short times are not compared.
		came("quick", "web", 0, time.Millisecond, 30*time.Millisecond), came("fine", "web", 0, 9*time.Millisecond, time.Millisecond),
		{Key: "k", From: "fine", Error: "failed"},
	}
	nodes := ByNode(rows)
	if len(nodes) != 4 || nodes[0].Node != "slow" || nodes[0].Slowest != "start" || !nodes[0].Slow() {
		t.Fatalf("%+v", nodes)
	}
	n := nodes[0]
	if n.Count != 3 || n.Init != (Spread{holdfast.Millis(2120 * s), holdfast.Millis(2200 * s)}) || n.Start.Max != holdfast.Millis(1104*s) || n.Ratio < 58 || n.Ratio > 59 {
		t.Errorf("%+v: the median start is 1000 s, the fleet's 17 s", n)
	}
	for _, n := range nodes[1:] {
		if n.Slow() || n.Ratio < 0.9 || n.Ratio > 1.2 {
			t.Errorf("%s: %.2f in %s", n.Node, n.Ratio, n.Slowest)
		}
	}
}

// Of two nodes the faster one determines the median.
func TestSlowOneOfTwo(t *testing.T) {
	nodes := ByNode([]holdfast.Replacement{came("a", "t", time.Minute, 0, 0), came("b", "t", time.Second, 0, 0)})
	if len(nodes) != 2 || nodes[0].Node != "a" || nodes[0].Ratio != 60 || nodes[1].Ratio != 1 {
		t.Errorf("%+v", nodes)
	}
	if none := ByNode(nil); none == nil || len(none) != 0 {
		t.Errorf("%v", none)
	}
}
