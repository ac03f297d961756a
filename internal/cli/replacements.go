package cli

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/api/client"
	"holdfast/internal/replace"
)

// past is what is printed of past replacements.
type past struct {
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
		Long: "Show the replacements that this agent did, and the nodes that sessions came up on, the slowest first.\n" +
			"RATIO is how many times the fleet's median a node takes, in the phase where that is highest; templates are compared with themselves.\n" +
			fmt.Sprintf("A node counts as slow from %.0fx on.", replace.SlowRatio),
		Example: "  holdfast session replacements\n  holdfast session replacements --slow\n  holdfast session replacements --node web-1 --limit 5 --json",
		Args:    noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usage(cmd, fmt.Errorf("--limit is %d, it has to be 0 or more", limit))
			}
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				rows, err := c.Replacements(ctx, 0)
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
	f.StringVar(&node, "node", "", "only what came up on this node, or failed to leave it")
	f.BoolVar(&slow, "slow", false, "only slow nodes, and what came up on them")
	f.IntVar(&limit, "limit", 20, "at most that many replacements, the newest; 0: all that are kept")
	a.completeNodeFlag(cmd)
	return cmd
}

// pick compares all nodes, and then leaves out what was not asked for.
func pick(rows []holdfast.Replacement, node holdfast.NodeID, slow bool) past {
	p := past{Nodes: []replace.NodeTimes{}, Rows: []holdfast.Replacement{}}
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

func (a *app) pastText(w io.Writer, p past, slow bool) {
	if len(p.Nodes) == 0 && len(p.Rows) == 0 {
		fmt.Fprintln(w, map[bool]string{true: "no node stands out", false: "this agent has replaced no such session"}[slow])
		return
	}
	if len(p.Nodes) > 0 {
		fmt.Fprintln(w, "NODE\tCOUNT\tINIT P50\tMAX\tSTART P50\tMAX\tREADY P50\tMAX\tRATIO")
		for _, n := range p.Nodes {
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%.1fx %s\n", dash(string(n.Node)), n.Count, phaseText(n.Init.P50), phaseText(n.Init.Max),
				phaseText(n.Start.P50), phaseText(n.Start.Max), phaseText(n.Ready.P50), phaseText(n.Ready.Max), n.Ratio, n.Slowest)
		}
		fmt.Fprintln(w)
	}
	now := a.deps.Now()
	fmt.Fprintln(w, "AGE\t"+replacementHead)
	for _, r := range p.Rows {
		fmt.Fprintln(w, age(now, r.Started)+"\t"+replacementRow(r, phaseText(r.Total)))
	}
}
