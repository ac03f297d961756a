package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/internal/sessions/replace"
)

// replacementHistory is the output about past replacements.
type replacementHistory struct {
	Nodes []replace.NodeTimes    `json:"nodes"`
	Rows  []holdfast.Replacement `json:"replacements"`
}

func (a *app) sessionReplacements() *cobra.Command {
	var (
		node  string
		slow  bool
		limit int
	)
	cmd := &cobra.Command{
		Use:   "replacements",
		Short: "Show past replacements, and which nodes are slow",
		Long: "Show past replacements by the agents of all nodes, and the nodes on which the sessions started, the slowest first.\n" +
			"RATIO is a node's time divided by the fleet's median, for the phase with the highest ratio. Templates are compared with themselves.\n" +
			"The phases: place, image, disk, init, create, start, ready; and of a group: caught-up, drained and stopped. The last two count for\n" +
			"the node of the old replica.\n" +
			fmt.Sprintf("A node counts as slow from %.0fx on.", replace.SlowRatio),
		Example: "  holdfast session replacements\n  holdfast session replacements --slow\n  holdfast session replacements --node web-1 --limit 5 --json",
		PreRunE: func(cmd *cobra.Command, _ []string) error { return atLeast(cmd, "limit", limit, 0) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				rows, err := a.allReplacements(ctx, c)
				if err != nil {
					return err
				}
				p := pick(rows, holdfast.NodeID(node), slow)
				if limit > 0 {
					p.Rows = p.Rows[:min(limit, len(p.Rows))]
				}
				return a.ui.result(p, func(w io.Writer) { a.pastText(w, p, slow) })
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&node, "node", "", "only sessions that started on this node, or failed to leave it")
	f.BoolVar(&slow, "slow", false, "only slow nodes, and the sessions that started on them")
	f.IntVar(&limit, "limit", 20, "at most that many replacements, the newest; 0: all that are kept")
	a.completeNodeFlag(cmd)
	return cmd
}

// How many nodes are asked at a time, and how long one may take.
const (
	askedAtOnce = 8
	nodeLimit   = 3 * time.Second
)

// allReplacements returns the replacements of all nodes that are up, the newest first.
// It names nodes that do not answer, and leaves them out.
func (a *app) allReplacements(ctx context.Context, c *client.Client) ([]holdfast.Replacement, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	var (
		mu     sync.Mutex
		rows   []holdfast.Replacement
		failed []error
		asking errgroup.Group
	)
	asking.SetLimit(askedAtOnce)
	for _, n := range nodes {
		asking.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, nodeLimit)
			defer cancel()
			some, err := c.Replacements(ctx, n.ID, 0)
			mu.Lock()
			defer mu.Unlock()
			rows = append(rows, some...)
			if err != nil {
				failed = append(failed, fmt.Errorf("node %s is left out: %w", n.ID, err))
			}
			return nil
		})
	}
	_ = asking.Wait() // no function returns an error
	if len(failed) == len(nodes) {
		return nil, errors.Join(failed...)
	}
	for _, err := range failed {
		a.ui.note("%s", clean(err.Error()))
	}
	sort.SliceStable(rows, func(i, j int) bool { return rows[j].Started.Before(rows[i].Started) })
	// An agent that died may have written a row that the next one wrote, too.
	return slices.CompactFunc(rows, func(x, y holdfast.Replacement) bool { return x.Key == y.Key && x.Started.Equal(y.Started) }), nil
}

// pick compares all nodes, and then applies the flags.
func pick(rows []holdfast.Replacement, node holdfast.NodeID, slow bool) replacementHistory {
	p := replacementHistory{Nodes: []replace.NodeTimes{}, Rows: []holdfast.Replacement{}}
	for _, n := range replace.ByNode(rows) {
		if (node == "" || n.Node == node) && (!slow || n.Slow()) {
			p.Nodes = append(p.Nodes, n)
		}
	}
	for _, r := range rows {
		at := r.To
		if at == "" {
			at = r.From
		}
		if (node == "" || at == node) && (!slow || slices.ContainsFunc(p.Nodes, func(n replace.NodeTimes) bool { return n.Node == at })) {
			p.Rows = append(p.Rows, r)
		}
	}
	return p
}

func (a *app) pastText(w io.Writer, p replacementHistory, slow bool) {
	if len(p.Nodes) == 0 && len(p.Rows) == 0 {
		if slow {
			fmt.Fprintln(w, "no node is slow")
		} else {
			fmt.Fprintln(w, "no such session was replaced")
		}
		return
	}
	if len(p.Nodes) > 0 {
		shown := nodePhases(p.Nodes)
		head := "NODE\tCOUNT"
		for _, name := range shown {
			head += "\t" + strings.ToUpper(name) + " P50\tMAX"
		}
		fmt.Fprintln(w, head+"\tRATIO")
		for _, n := range p.Nodes {
			line := fmt.Sprintf("%s\t%d", dash(string(n.Node)), n.Count)
			for _, name := range shown {
				t := n.Phase(name)
				line += "\t" + phaseText(t.P50) + "\t" + phaseText(t.Max)
			}
			fmt.Fprintf(w, "%s\t%.1fx %s\n", line, n.Ratio, n.Slowest)
		}
		fmt.Fprintln(w)
	}
	now := a.deps.Now()
	shown := phasesOf(p.Rows)
	fmt.Fprintln(w, "AGE\t"+replacementHead(shown))
	for _, r := range p.Rows {
		fmt.Fprintln(w, age(now, r.Started)+"\t"+replacementRow(r, shown, phaseText(r.Total)))
	}
}

// nodePhases returns the phases that the table of the nodes shows, as phasesOf does.
func nodePhases(nodes []replace.NodeTimes) []string {
	var shown []string
	for _, p := range replace.ComparedPhases() {
		usual := p.Name == "init" || p.Name == "start" || p.Name == "ready"
		if usual || slices.ContainsFunc(nodes, func(n replace.NodeTimes) bool {
			return n.Phase(p.Name).Max >= shortPhase || n.Slow() && n.Slowest == p.Name
		}) {
			shown = append(shown, p.Name)
		}
	}
	return shown
}
