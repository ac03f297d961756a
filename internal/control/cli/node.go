package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api/client"
)

func (a *app) nodeCmd() *cobra.Command {
	return group(&cobra.Command{
		Use:     "node",
		Short:   "See the nodes, take them out of rotation and in again, give them certificates",
		Long:    "See the nodes, which are the hosts with an agent, take them out of rotation and in again, and give them certificates.",
		Example: "  holdfast node ls\n  holdfast node cordon web-1",
	}, a.nodeLs(), a.nodeCordon(), a.nodeUncordon(), a.nodeDrain(), a.nodeInitCA(), a.nodeJoin())
}

func (a *app) nodeLs() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List all nodes that are up",
		Long: "List all nodes that are up, by id. STATE is up or cordoned (it takes no new session, as after a drain), and after a comma what is wrong with it.\n" +
			"BOOTS are containers being started and how many may be at once. NETWORKS are those that wait for sessions, and how many are kept; WARM is the same of containers. PRESSURE is the share of the last ten seconds in which something waited for a CPU.\n" +
			"PEER ADDRESS is where other nodes reach it.",
		Example: "  holdfast node ls\n  holdfast node ls --json",
		Args:    noArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				all, err := c.Nodes(ctx)
				if err != nil {
					return err
				}
				return a.ui.result(all, func(w io.Writer) { a.nodeTable(w, all) })
			})
		},
	}
}

func (a *app) nodeTable(w io.Writer, all []holdfast.Node) {
	now := a.deps.Now()
	fmt.Fprintln(w, "NODE\tSTATE\tSESSIONS\tBOOTS\tNETWORKS\tWARM\tCPU\tPRESSURE\tMEMORY FREE\tPEER ADDRESS\tGATEWAY\tUP\tVERSION")
	for _, n := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%.0f%%\t%.0f%%\t%s\t%s\t%s\t%s\t%s\n", dash(string(n.ID)), nodeState(n), of(n.Sessions, n.Max), of(n.Boots, n.Slots), of(n.Networks, n.NetworksKept), of(n.Warm, n.WarmWanted),
			100*n.CPULoad, 100*n.Pressure, fmt.Sprintf("%.1f of %.1f GiB", gib(n.Memory.Available), gib(n.Memory.Total)),
			dash(n.PeerAddress), dash(n.Address), age(now, n.Since), dash(n.Version))
	}
}

func nodeState(n holdfast.Node) string {
	state := "up"
	if n.Draining {
		state = "cordoned"
	}
	if n.Trouble != "" {
		state += ", " + clean(n.Trouble)
	}
	if n.Degraded != "" {
		state += ", degraded: " + clean(n.Degraded)
	}
	return state
}

// of shows how much of a bound is used, 0 being none.
func of(n, bound int) string {
	if bound == 0 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d of %d", n, bound)
}

func gib(bytes int64) float64 { return float64(bytes) / (1 << 30) }

// oneNode is the argument of commands that act on this node where none is named.
func oneNode() cobra.PositionalArgs { return args(0, 1, "at most one node") }

// named is the node that the command line names, "" where it names none.
func named(words []string) holdfast.NodeID {
	if len(words) == 0 {
		return ""
	}
	return holdfast.NodeID(words[0])
}

// nodeWords names a node in a sentence's beginning.
func nodeWords(node holdfast.NodeID) string {
	if node == "" {
		return "the node"
	}
	return "node " + clean(string(node))
}

func (a *app) nodeCordon() *cobra.Command {
	return a.rotation(&cobra.Command{
		Use:   "cordon [NODE]",
		Short: "Let a node take no new session",
		Long: "Let a node take no new session. It keeps those it has, until they end or are replaced or drained.\n" +
			"Without NODE it is the agent's own. A cordon holds over restarts of agent and host, until `holdfast node uncordon`.",
		Example: "  holdfast node cordon\n  holdfast node cordon web-1",
	}, (*client.Client).Cordon, true, "takes no new session")
}

func (a *app) nodeUncordon() *cobra.Command {
	return a.rotation(&cobra.Command{
		Use:     "uncordon [NODE]",
		Short:   "Take sessions again after a cordon or a drain",
		Long:    "Make a node take sessions again after a cordon or a drain. Without NODE it is the agent's own.",
		Example: "  holdfast node uncordon\n  holdfast node uncordon web-1",
	}, (*client.Client).Uncordon, false, "takes sessions again")
}

// rotation is a command that takes a node out of rotation or in again.
func (a *app) rotation(cmd *cobra.Command, do func(*client.Client, context.Context, holdfast.NodeID) error, out bool, said string) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = oneNode(), a.completeNode
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
			node := named(words)
			if err := do(c, ctx, node); err != nil {
				return err
			}
			result := map[string]any{"draining": out}
			if node != "" {
				result["node"] = node
			}
			return a.ui.result(result, func(w io.Writer) { fmt.Fprintln(w, nodeWords(node), said) })
		})
	}
	return cmd
}
