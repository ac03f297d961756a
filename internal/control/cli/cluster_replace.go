package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/hosts/kube/replace"
)

// Defaults of `cluster replace`.
const (
	defaultDrainLimit   = time.Hour
	defaultReadyLimit   = 30 * time.Minute
	defaultCommandLimit = 30 * time.Minute
	defaultPatience     = 10 * time.Minute
)

// replaceNodes is one call of `cluster replace`.
type replaceNodes struct {
	conf            replace.Config
	worse           []string
	provision, disk string
	dry, yes, leave bool
}

func (a *app) clusterReplace(f *clusterFlags) *cobra.Command {
	var q replaceNodes
	cmd := &cobra.Command{
		Use:   "replace --selector LABELS [--worse-than NAME=VALUE…] [-- COMMAND ARG…]",
		Short: "Replace nodes one after another: bring up their pods elsewhere, evict them, delete the machine",
		Long: "Cordon all selected nodes. Then, one node after another: bring up as many more pods of each Deployment and ReplicaSet as it has on the node, wait until they are ready elsewhere, evict the node's pods, scale the workloads back, and run the command that deletes the machine.\n" +
			"A workload that forbids more pods is evicted first; the plan says which, and why. Disruption budgets are respected. Pods of DaemonSets and static pods stay. The command prints the plan first.\n" +
			"--provision makes a new machine before that, and the pods move only when it is a ready node.\n" +
			"It stops at the first node that fails, or if the cluster's health falls: workloads are scaled back, and nodes that are not drained accept pods again. After a crash --resume continues.\n" +
			"In the commands {node} is the node's name, {provider-id} the cloud's name of its machine and {new-node} the name of the new node. They run without a shell, and after a crash they may run again.",
		Example: "  holdfast cluster replace --selector pool=old --dry-run\n" +
			"  holdfast cluster replace --selector pool=old --worse-than memcg.dying=10000 --worse-than age=60d -- gcloud compute instances delete --quiet {node}\n" +
			"  holdfast cluster replace --selector pool=old --provision '/usr/local/bin/new-machine --like {node}' -- gcloud compute instances delete --quiet {node}\n" +
			"  holdfast cluster replace --resume -- gcloud compute instances delete --quiet {node}",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, words []string) error {
			if err := q.read(cmd, words); err != nil {
				return usage(cmd, err)
			}
			return a.replaceNodes(cmd, f, &q)
		},
	}
	s := cmd.Flags()
	s.StringVar(&q.conf.Selector, "selector", "", "labels of the nodes, in the syntax of kubectl: pool=old,zone!=a")
	s.StringArrayVar(&q.worse, "worse-than", nil, "only nodes over this value: age, spinup.slow, spinup.p50, spinup.p99, or a fact of the doctor such as memcg.dying or reclaim.p50; with several, nodes over any of them")
	s.IntVar(&q.conf.MaxUnavailable, "max-unavailable", 1, "how many nodes to drain at a time")
	s.BoolVar(&q.conf.Surge, "surge", true, "bring up pods elsewhere before they are evicted, one node at a time; =false evicts them first")
	s.StringVar(&q.provision, "provision", "", "command that makes a new machine for {node}: an absolute path and arguments, separated by spaces")
	s.StringVar(&q.disk, "provision-disk", "", "command that prepares the disk of {new-node} when it is ready, in the same form")
	s.IntVar(&q.conf.Grace, "grace-period", -1, "seconds that pods get to end; below 0: their own grace period")
	s.DurationVar(&q.conf.DrainLimit, "drain-timeout", defaultDrainLimit, "longest time for a node's pods to end")
	s.DurationVar(&q.conf.ReadyLimit, "ready-timeout", defaultReadyLimit, "longest time for pods to be ready elsewhere, and for a new machine to be a ready node")
	s.DurationVar(&q.conf.CommandLimit, "command-timeout", defaultCommandLimit, "longest time of each command for a node")
	s.DurationVar(&q.conf.Patience, "patience", defaultPatience, "longest time that the API server may be unreachable")
	s.BoolVar(&q.conf.Rules.LocalData, "delete-emptydir-data", false, "also evict pods with local data, which is lost")
	s.BoolVar(&q.conf.Rules.Unmanaged, "force", false, "also evict pods without a controller, which do not come back")
	s.BoolVar(&q.dry, "dry-run", false, "print the plan and change nothing")
	s.BoolVar(&q.yes, "yes", false, "do not ask for confirmation, which happens on a terminal only")
	s.BoolVar(&q.conf.Resume, "resume", false, "continue an earlier run that did not end")
	s.BoolVar(&q.leave, "abandon", false, "end an earlier run that did not end: nodes that it has not drained accept pods again")
	return cmd
}

func (q *replaceNodes) read(cmd *cobra.Command, words []string) error {
	if cmd.ArgsLenAtDash() != 0 && len(words) > 0 {
		return fmt.Errorf("there is %q, and the command must follow --", words[0])
	}
	limits, err := replace.ParseLimits(q.worse)
	if err != nil {
		return fmt.Errorf("--worse-than: %w", err)
	}
	q.conf.Limits, q.conf.Command = limits, words
	for text, flag := range map[*string]string{&q.provision: "--provision", &q.disk: "--provision-disk"} {
		if strings.ContainsAny(*text, "'\"\\$`|;") {
			return fmt.Errorf("%s: no shell reads the command, and it may not have quotes, $, `, | or ;: put them in a script", flag)
		}
	}
	q.conf.Provision, q.conf.Disk = strings.Fields(q.provision), strings.Fields(q.disk)
	if q.leave {
		if q.conf.Resume || q.conf.Selector != "" || len(limits) > 0 || len(words) > 0 || q.provision != "" || q.disk != "" || q.dry {
			return errors.New("--abandon goes with no other flag or argument: it ends the earlier run as it is")
		}
		q.conf.Resume = true
	}
	return q.conf.Validate()
}

func (a *app) replaceNodes(cmd *cobra.Command, f *clusterFlags, q *replaceNodes) error {
	c, err := f.client(a.deps.Version.Version)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := a.limited(cmd, noLimit)
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP) // a terminal that closes must not leave workloads enlarged
	defer stop()
	q.conf.Namespace, q.conf.Output = f.namespace, a.ui.err
	r, err := replace.New(c, q.conf)
	if err != nil {
		return err
	}
	if q.leave {
		return a.abandon(ctx, r)
	}
	p, err := r.Plan(ctx)
	if errors.Is(err, replace.ErrNothing) {
		a.ui.note("no node matches")
		return a.ui.result(replace.Report{Nodes: []replace.NodeReport{}, Uncordoned: []string{}, Left: []string{}}, func(io.Writer) {})
	}
	if err != nil {
		return err
	}
	if q.dry {
		if err := a.ui.result(p, func(w io.Writer) { nodePlanText(w, p, a.deps.Now()) }); err != nil {
			return err
		}
		return refused(p)
	}
	if !a.ui.json {
		if err := a.ui.result(nil, func(w io.Writer) { nodePlanText(w, p, a.deps.Now()) }); err != nil {
			return err
		}
	}
	if onlyLocal(p) && a.ask(ctx, "The local data of these pods would be lost. Continue?") {
		q.conf.Rules.LocalData = true
		if r, err = replace.New(c, q.conf); err != nil {
			return err
		}
		if p, err = r.Plan(ctx); err != nil {
			return err
		}
	}
	if err := refused(p); err != nil {
		return err
	}
	if _, tty := terminal(a.ui.in); tty && !q.yes && !a.ask(ctx, "Replace "+count(len(p.Nodes), "node")+"?") {
		return errors.New("not begun")
	}
	rep, err := r.Run(ctx, p, func(s replace.Step) { a.ui.note("%s", stepLine(s)) })
	return a.nodesReplaced(rep, err)
}

func stepLine(s replace.Step) string {
	if s.Node == "" {
		return clean(s.What)
	}
	return clean(s.Node) + ": " + clean(s.What)
}

// nodesReplaced prints the report. Its error says what failed.
func (a *app) nodesReplaced(rep replace.Report, err error) error {
	if e := a.ui.result(rep, func(w io.Writer) { nodesText(w, rep) }); e != nil || err == nil {
		return errors.Join(err, e)
	}
	if errors.Is(err, context.Canceled) && len(rep.Left) == 0 {
		return err
	}
	hint := "no node is left cordoned"
	if len(rep.Left) > 0 {
		hint = "drained but not deleted: " + strings.Join(rep.Left, ", ") + "; --resume continues with them, --abandon ends the run without them"
	}
	return Partial(errors.New(err.Error()), hint)
}

// refused returns why a plan cannot be carried out.
func refused(p replace.Plan) error {
	if len(p.Problems) == 0 {
		return nil
	}
	const most = 5
	shown := p.Problems[:min(len(p.Problems), most)]
	msg := strings.Join(shown, "; ")
	if n := len(p.Problems) - len(shown); n > 0 {
		msg += fmt.Sprintf("; and %d more", n)
	}
	hint := "--delete-emptydir-data and --force also evict such pods; their data is lost"
	if p.Room == 0 {
		hint = "add nodes first, or select fewer by --selector"
	}
	return holdfast.WithHint(errors.New(msg), hint)
}

// onlyLocal reports whether local data is the only obstacle.
func onlyLocal(p replace.Plan) bool {
	n := 0
	for _, x := range p.Nodes {
		for _, pod := range x.Pods {
			if pod.Treatment == replace.Refuse && pod.Why == replace.WhyLocal {
				n++
			}
		}
	}
	return n > 0 && n == len(p.Problems)
}

// ask asks a question on a terminal; elsewhere the answer is no.
func (a *app) ask(ctx context.Context, question string) bool {
	if _, tty := terminal(a.ui.in); !tty || a.ui.json {
		return false
	}
	fmt.Fprintf(a.ui.err, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // ends with the process if there is no answer
		line, _ := bufio.NewReader(a.ui.in).ReadString('\n')
		answer <- line
	}()
	select {
	case line := <-answer:
		line = strings.ToLower(strings.TrimSpace(line))
		return line == "y" || line == "yes"
	case <-ctx.Done():
		return false
	}
}

func (a *app) abandon(ctx context.Context, r *replace.Runner) error {
	done, err := r.Abandon(ctx)
	if err != nil {
		return err
	}
	return a.ui.result(done, func(w io.Writer) {
		if len(done.Uncordoned)+len(done.Left)+len(done.ScaledBack) == 0 {
			fmt.Fprintln(w, "there is no run to end")
		}
		for _, n := range done.ScaledBack {
			fmt.Fprintf(w, "%s is scaled back\n", clean(n))
		}
		for _, n := range done.Uncordoned {
			fmt.Fprintf(w, "%s accepts pods again\n", clean(n))
		}
		for _, n := range done.Left {
			fmt.Fprintf(w, "%s stays cordoned\n", clean(n))
		}
	})
}

func nodePlanText(w io.Writer, p replace.Plan, now time.Time) {
	fmt.Fprintln(w, "NODE\tAGE\tKERNEL\tEVICT\tLEAVE\tREFUSE\tPHASE\tWHY")
	for _, n := range p.Nodes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", dash(n.Name), age(now, n.Created), dash(n.Kernel),
			n.Count(replace.Evict), n.Count(replace.Leave), n.Count(replace.Refuse), dash(string(n.Phase)), dash(strings.Join(n.Why, ", ")))
	}
	for _, n := range p.Nodes {
		for _, s := range n.Surges {
			if s.Skipped != "" {
				fmt.Fprintf(w, "%s: %s of %s is evicted first: %s\n", clean(n.Name), clean(s.Workload), clean(s.Namespace), clean(s.Skipped))
			}
		}
		for _, pod := range n.Pods {
			name := clean(pod.Namespace) + "/" + clean(pod.Name)
			switch {
			case pod.Treatment == replace.Refuse:
				fmt.Fprintf(w, "%s: pod %s blocks the drain: %s\n", clean(n.Name), name, clean(pod.Why))
			case pod.Treatment == replace.Evict && pod.Why != "":
				fmt.Fprintf(w, "%s: pod %s is evicted, though %s\n", clean(n.Name), name, clean(pod.Why))
			case pod.Budget != "":
				fmt.Fprintf(w, "%s: pod %s waits for the disruption budget %s\n", clean(n.Name), name, clean(pod.Budget))
			}
		}
	}
	fmt.Fprintf(w, "%s that are not selected accept pods\n", count(p.Room, "node"))
	printEach(w, "note", p.Notes)
}

func nodesText(w io.Writer, rep replace.Report) {
	rows := 0
	for _, n := range rep.Nodes {
		rows += len(n.Pods)
	}
	if rows > 0 {
		fmt.Fprintln(w, "WORKLOAD\tOLD POD\tNODE\tINIT\tSTART\tTOTAL\tNEW POD\tNODE\tINIT\tSTART\tTOTAL")
	}
	done := 0
	for _, n := range rep.Nodes {
		if n.Phase == replace.Done {
			done++
		}
		for _, p := range n.Pods {
			fresh := "-\t-\t-\t-\t-"
			if p.New != nil {
				fresh = place(*p.New)
			}
			fmt.Fprintf(w, "%s/%s\t%s\t%s\n", clean(p.Namespace), clean(p.Workload), place(p.Old), fresh)
		}
	}
	for _, n := range rep.Nodes {
		var took []string
		for _, p := range n.Phases {
			took = append(took, fmt.Sprintf("%s %s", p.Phase, p.Took))
		}
		if n.NewNode != "" {
			took = append(took, "new node "+clean(n.NewNode))
		}
		fmt.Fprintf(w, "%s: %s\n", clean(n.Node), strings.Join(took, ", "))
	}
	fmt.Fprintf(w, "%s replaced\n", count(done, "node"))
	if len(rep.Uncordoned) > 0 {
		fmt.Fprintf(w, "not drained, and accepting pods again: %s\n", clean(strings.Join(rep.Uncordoned, ", ")))
	}
	if len(rep.Left) > 0 {
		fmt.Fprintf(w, "drained but not deleted: %s\n", clean(strings.Join(rep.Left, ", ")))
	}
}

func place(p replace.Place) string {
	took := func(m *holdfast.Millis) string {
		if m == nil {
			return "-"
		}
		return m.String()
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", dash(p.Pod), dash(p.Node), took(p.Init), took(p.Start), took(p.Total))
}
