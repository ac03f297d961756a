package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/survey"
)

// clusterFlags select the cluster.
type clusterFlags struct {
	kubeconfig, context, namespace string
}

func (a *app) clusterCmd() *cobra.Command {
	var f clusterFlags
	cmd := group(&cobra.Command{
		Use:   "cluster",
		Short: "List the nodes of a Kubernetes cluster, and replace the slow ones",
		Long: "List the nodes of a Kubernetes cluster, and replace the slow ones. These commands use the cluster's API server as kubectl does,\n" +
			"with the same kubeconfig. The agents store their findings there.",
		Example: "  holdfast cluster nodes\n  holdfast cluster replace --selector pool=old --dry-run",
	}, a.clusterNodes(&f), a.clusterReplace(&f))
	p := cmd.PersistentFlags()
	p.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file (default $"+kube.PathEnv+", then ~/.kube/config, then the pod's own account)")
	p.StringVar(&f.context, "context", "", "context in it (default its current one)")
	p.StringVar(&f.namespace, "namespace", survey.Namespace, "namespace of Holdfast's agents")
	return cmd
}

// client connects to the cluster. The caller closes it.
func (f clusterFlags) client(version string) (*kube.Client, error) {
	conf, err := kube.Load(f.kubeconfig, f.context)
	if err != nil {
		return nil, err
	}
	c, err := kube.New(conf, kube.Options{Agent: "holdfast/" + version})
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return c, nil
}

func (a *app) clusterNodes(f *clusterFlags) *cobra.Command {
	var selector string
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "List the nodes, the slow ones first",
		Long: "List the nodes with the findings of their agents, the slow ones first and among them the older ones first.\n" +
			"DYING is the number of removed memory cgroups that the kernel still keeps, RECLAIM the median time of a reclaim of memory cgroups,\n" +
			"SLOW the share of spin-ups with a slow phase, and P99 the longest time of a container's create and start in 99 of 100 cases.\n" +
			"A node without an agent has \"-\" there.",
		Example: "  holdfast cluster nodes\n  holdfast cluster nodes --selector pool=old --json",
		RunE: a.within(time.Minute, func(ctx context.Context, _ *cobra.Command, _ []string) error {
			c, err := f.client(a.deps.Version.Version)
			if err != nil {
				return err
			}
			defer c.Close()
			nodes, gap, err := survey.Look(ctx, c, selector, f.namespace)
			if err != nil {
				return err
			}
			if gap != nil {
				a.ui.note("warning: the agents' findings are unknown: %s", clean(gap.Error()))
			}
			return a.ui.result(nodes, func(w io.Writer) { nodeTable(w, nodes, a.deps.Now()) })
		}),
	}
	cmd.Flags().StringVar(&selector, "selector", "", "labels of the nodes, in the syntax of kubectl: pool=old,zone!=a")
	return cmd
}

func nodeTable(w io.Writer, nodes []survey.Node, now time.Time) {
	fmt.Fprintln(w, "NODE\tSTATE\tAGE\tKERNEL\tDYING\tRECLAIM\tSLOW\tP99\tHURTS")
	for _, n := range nodes {
		state := "ready"
		switch {
		case !n.Ready && n.Cordoned:
			state = "not ready, cordoned"
		case !n.Ready:
			state = "not ready"
		case n.Cordoned:
			state = "cordoned"
		}
		dying, reclaim, slow, p99 := "-", "-", "-", "-"
		if r := n.Record; r != nil {
			if v, ok := r.Facts[fact.MemcgDying]; ok {
				dying = fmt.Sprintf("%.0f", v)
			}
			if v, ok := r.Facts[fact.ReclaimP50]; ok {
				reclaim = holdfast.Millis(time.Duration(v * float64(time.Millisecond))).String()
			}
			if r.Spinups.Count > 0 {
				slow = fmt.Sprintf("%.1f%%", 100*float64(r.Spinups.Slow)/float64(r.Spinups.Count))
				p99 = fmt.Sprintf("%.2f s", r.Spinups.P99)
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", dash(n.Name), state, age(now, n.Created), dash(n.Kernel), dying, reclaim, slow, p99, dash(strings.Join(n.Hurts, ", ")))
	}
}
