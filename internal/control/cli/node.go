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
		Short:   "List, cordon and uncordon nodes, and make their certificates",
		Long:    "List the nodes, which are the hosts with an agent, cordon and uncordon them, and make their certificates and ids.",
		Example: "  holdfast node ls\n  holdfast node cordon web-1",
	}, a.nodeLs(), a.nodeCordon(), a.nodeUncordon(), a.nodeDrain(), a.nodeInitCA(), a.nodeJoin(), a.nodeNewID())
}

func (a *app) nodeLs() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List all nodes that are up",
		Long: "List all nodes that are up, by id. STATE is up or cordoned (the node refuses new sessions, as after a drain), and after a comma its trouble, or why sessions get networks of the engine's.\n" +
			"BOOTS are starting containers, with their limit. NETWORKS are ready networks, and how many are kept; WARM is the same for containers. PRESSURE is the share of the last ten seconds in which a task waited for a CPU.\n" +
			"PEER ADDRESS is the node's address for other nodes.",
		Example: "  holdfast node ls\n  holdfast node ls --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				all, err := c.Nodes(ctx)
				return show(a.ui, all, err, a.nodeTable)
			})
		},
	}
}

func (a *app) nodeTable(w io.Writer, all []holdfast.Node) {
	now := a.deps.Now()
	fmt.Fprintln(w, "NODE\tSTATE\tSESSIONS\tBOOTS\tNETWORKS\tWARM\tCPU\tPRESSURE\tMEMORY FREE\tPEER ADDRESS\tGATEWAY\tUP\tVERSION")
	for _, n := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%.0f%%\t%.0f%%\t%s\t%s\t%s\t%s\t%s\n", dash(string(n.ID)), nodeState(n), ofLimit(n.Sessions, n.Max), ofLimit(n.Boots, n.Slots), ofLimit(n.Networks, n.NetworksKept), ofLimit(n.Warm, n.WarmWanted),
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
	if n.EngineNetworks != "" {
		state += ", networks of the engine's: " + clean(n.EngineNetworks)
	}
	if n.Degraded != "" {
		state += ", degraded: " + clean(n.Degraded)
	}
	return state
}

// ofLimit prints how much of a limit is used. 0 means that there is no limit.
func ofLimit(n, bound int) string {
	if bound == 0 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d of %d", n, bound)
}

func gib(bytes int64) float64 { return float64(bytes) / (1 << 30) }

// oneNode is the optional argument of commands for a node; the default is this node.
func oneNode() cobra.PositionalArgs { return args(0, 1, "at most one node") }

// nodeArg returns the node of the command line, or "".
func nodeArg(words []string) holdfast.NodeID {
	if len(words) == 0 {
		return ""
	}
	return holdfast.NodeID(words[0])
}

// nodeWords names a node at the beginning of a sentence.
func nodeWords(node holdfast.NodeID) string {
	if node == "" {
		return "the node"
	}
	return "node " + clean(string(node))
}

func (a *app) nodeCordon() *cobra.Command {
	return a.rotation(&cobra.Command{
		Use:   "cordon [NODE]",
		Short: "Make a node refuse new sessions",
		Long: "Make a node refuse new sessions. It keeps those that it has, until they end or are replaced or drained.\n" +
			"Without NODE it is the agent's own node. A cordon lasts over restarts of agent and host, until `holdfast node uncordon`.",
		Example: "  holdfast node cordon\n  holdfast node cordon web-1",
	}, (*client.Client).Cordon, true, "refuses new sessions")
}

func (a *app) nodeUncordon() *cobra.Command {
	return a.rotation(&cobra.Command{
		Use:     "uncordon [NODE]",
		Short:   "Let a node accept sessions after a cordon or a drain",
		Long:    "Let a node accept sessions again after a cordon or a drain. Without NODE it is the agent's own node.",
		Example: "  holdfast node uncordon\n  holdfast node uncordon web-1",
	}, (*client.Client).Uncordon, false, "accepts sessions again")
}

func (a *app) nodeNewID() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "new-id",
		Short: "Make a copy of another host a node of its own",
		Long: "Make this host, which was copied from another one with its data directory, a node of its own: remove the other node's id, lease and embedded store.\n" +
			"The next agent takes the id from the configuration, or else the host's name. In a fleet, the node also needs a certificate of its own: holdfast node join.\n" +
			"No agent may run on this host. Nothing changes on the other host.",
		Example: "  holdfast node new-id\n  holdfast node new-id --config /etc/holdfast/holdfast.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			before, now, err := a.deps.NewNodeID(cmd.Context(), config)
			return show(a.ui, map[string]holdfast.NodeID{"before": before, "node": now}, err, func(w io.Writer, _ map[string]holdfast.NodeID) {
				fmt.Fprintf(w, "the next agent of this host is node %s\n", clean(string(now)))
			})
		},
	}
	cmd.Flags().StringVar(&config, "config", "", "configuration file (default /etc/holdfast/holdfast.yaml, which may be missing)")
	return cmd
}

// rotation returns a command that cordons or uncordons a node.
func (a *app) rotation(cmd *cobra.Command, do func(*client.Client, context.Context, holdfast.NodeID) error, out bool, said string) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = oneNode(), onlyOne(a.completeNode)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
			node := nodeArg(words)
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
