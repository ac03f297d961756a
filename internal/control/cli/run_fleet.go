package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
	"holdfast/internal/hosts/job"
)

// allNodes is the value of --fleet without nodes.
const allNodes = "all"

// fleetJob is a job that runs on nodes of the fleet.
type fleetJob struct {
	*app
	client *client.Client
	job    job.Job
	id     string
	nodes  []holdfast.NodeID // of each run
	out    io.Writer
	errs   io.Writer
	output job.Prefixed // to out and errs
	stop   context.CancelFunc

	mu     sync.Mutex // guards the fields below, and the notes
	result job.Result
	ended  map[int]bool
	failed error                     // the first error other than a lost node
	lost   map[holdfast.NodeID]error // nodes that were lost
}

// checkFleet returns an error for flags and jobs that work on this host only.
func checkFleet(cmd *cobra.Command, j job.Job) error {
	for _, flag := range []string{"tty", "stdin"} {
		if v, _ := cmd.Flags().GetBool(flag); v && cmd.Flags().Changed(flag) {
			return usage(cmd, fmt.Errorf("--%s does not go with --fleet: the steps have no input", flag))
		}
	}
	if p := j.HostPath(); p != "" {
		return Usage(holdfast.WithHint(fmt.Errorf("the mount of %s does not go with --fleet: it is a path of this host", p), "use a volume, which each node has for itself"))
	}
	return nil
}

// runOnFleet runs a job on the nodes that value names, and prints the result.
func (a *app) runOnFleet(ctx context.Context, c *client.Client, j job.Job, value string) error {
	host, err := a.deps.Host(ctx)
	if err != nil {
		return runError(err)
	}
	q := api.PlaceJobRequest{JobImages: api.JobImages{Platform: j.Platform, Pull: j.Pull}, Runs: j.Parallelism}
	for _, img := range j.Images {
		q.Images = append(q.Images, img.Image)
	}
	if value != allNodes {
		for _, n := range strings.Split(value, ",") {
			q.Nodes = append(q.Nodes, holdfast.NodeID(n))
		}
	}
	placing, done := context.WithTimeout(ctx, askLimit)
	nodes, err := c.PlaceJob(placing, q)
	done()
	if err != nil {
		return runError(err)
	}
	x := &fleetJob{
		app: a, client: c, job: j, id: job.NewID(), nodes: nodes, out: a.ui.out, errs: a.ui.err,
		ended: map[int]bool{}, lost: map[holdfast.NodeID]error{},
	}
	if a.ui.json { // stdout has only the result
		x.out = a.ui.err
	}
	x.output = job.NewPrefixed(x.out, x.errs)
	err = x.run(ctx)
	if err != nil {
		err = runError(err)
		x.result.ExitCode = exitCode(err)
	}
	if shown := a.showJob(x.result, err, x.nameOf, host.Spinup.Slow); err == nil && shown != nil {
		err = runError(shown)
	}
	if err == nil && x.result.ExitCode != 0 {
		return status(x.result.ExitCode)
	}
	return err
}

// run runs the job's parts on their nodes until all have ended.
func (x *fleetJob) run(ctx context.Context) error {
	parts := map[holdfast.NodeID][]int{}
	var order []holdfast.NodeID
	for run, n := range x.nodes {
		if parts[n] == nil {
			order = append(order, n)
		}
		parts[n] = append(parts[n], run)
	}
	for _, n := range order {
		x.ui.note("job %s: %s on node %s", x.id, ranges(parts[n]), clean(string(n)))
	}
	var inside context.Context
	inside, x.stop = context.WithCancel(ctx)
	defer x.stop()
	var g errgroup.Group
	for _, n := range order {
		g.Go(func() error {
			x.part(inside, n, parts[n])
			return nil
		})
	}
	_ = g.Wait() // the errors are in x
	return x.conclude(ctx, order, parts)
}

// part runs the part of one node. An error that is not the loss of the node stops the other
// parts.
func (x *fleetJob) part(ctx context.Context, node holdfast.NodeID, runs []int) {
	type sinks struct {
		stdout, stderr io.Writer
		flush          func()
	}
	out := map[int]sinks{}
	for _, run := range runs {
		var s sinks
		if s.stdout, s.stderr, s.flush = x.output.Output(x.prefix(run)); len(x.nodes) == 1 {
			s = sinks{x.out, x.errs, func() {}}
		}
		defer s.flush()
		out[run] = s
	}
	err := x.client.RunJob(ctx, node, api.JobRequest{ID: x.id, Job: x.job, Runs: runs}, api.JobStream{
		Output: func(run int) (stdout, stderr io.Writer) {
			s, ok := out[run]
			if !ok {
				return io.Discard, io.Discard
			}
			return s.stdout, s.stderr
		},
		Event: func(ev api.JobEvent) { x.hear(node, ev) },
	})
	if err == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if isLost(err) && ctx.Err() == nil {
		x.lost[node] = err
		x.ui.note("node %s was lost: %s", clean(string(node)), clean(err.Error()))
		return
	}
	if x.failed == nil {
		x.failed = err
		if len(x.nodes) > 1 && !errors.Is(err, context.Canceled) {
			x.failed = fmt.Errorf("node %s: %w", node, err)
		}
	}
	x.stop()
}

// isLost reports whether an error is that of a node that ended, or that cannot be reached.
func isLost(err error) bool {
	wire, ok := errors.AsType[*api.Error](err)
	return errors.Is(err, client.ErrUnreachable) || ok && wire.Code == api.CodeNodeDown
}

// hear takes an event of a node.
func (x *fleetJob) hear(node holdfast.NodeID, ev api.JobEvent) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case ev.Progress != nil && ev.Progress.Run < 0:
		x.ui.note("%s %s: %s", clean(string(node)), clean(ev.Progress.Name), clean(ev.Progress.Line))
	case ev.Progress != nil:
		x.ui.note("%s: %s", clean(x.nameOf(ev.Progress.Run, ev.Progress.Name)), clean(ev.Progress.Line))
	case ev.Started != nil && x.isAt(ev.Started.Run, node):
		x.result.Spinups = append(x.result.Spinups, *ev.Started)
	case ev.Ended != nil && x.isAt(ev.Ended.Index, node):
		r := *ev.Ended
		r.Node = node
		x.result.Runs = append(x.result.Runs, r)
		x.ended[r.Index] = true
	}
}

// isAt reports whether the node runs a run that has not ended.
func (x *fleetJob) isAt(run int, node holdfast.NodeID) bool {
	return run >= 0 && run < len(x.nodes) && x.nodes[run] == node && !x.ended[run]
}

// nameOf returns the name of a container with its run and its node.
func (x *fleetJob) nameOf(run int, name string) string {
	if run < 0 || run >= len(x.nodes) {
		return name
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s", inRun(run, len(x.nodes), string(x.nodes[run])), name))
}

// prefix begins each line of a run's output.
func (x *fleetJob) prefix(run int) string {
	longest := 0
	for _, n := range x.nodes {
		longest = max(longest, len(n))
	}
	return fmt.Sprintf("%*d %-*s | ", len(strconv.Itoa(len(x.nodes)-1)), run, longest, x.nodes[run])
}

// conclude completes the result: it has an entry for each run. It returns why the job was
// not run to its end.
func (x *fleetJob) conclude(ctx context.Context, order []holdfast.NodeID, parts map[holdfast.NodeID][]int) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.result.Job = x.id
	err := x.failed
	if lost := x.lostError(order, parts); err == nil {
		err = lost
	}
	if ctx.Err() != nil && (x.failed == nil || errors.Is(x.failed, context.Canceled)) {
		err = ctx.Err()
	}
	for run, node := range x.nodes {
		if x.ended[run] {
			continue
		}
		why := "it was stopped"
		if e := x.lost[node]; e != nil {
			why = fmt.Sprintf("node %s was lost: %s", node, e)
		} else if x.failed != nil {
			why = "it was stopped: " + x.failed.Error()
		}
		x.result.Runs = append(x.result.Runs, job.Run{Index: run, ExitCode: exitNoJob, Steps: []job.StepResult{}, Node: node, Error: why})
		if err == nil {
			err = fmt.Errorf("node %s: run %d has no result", node, run)
		}
	}
	x.result.Conclude()
	return err
}

// lostError is the error of nodes that were lost while runs of theirs had no result, nil if
// there is none.
func (x *fleetJob) lostError(order []holdfast.NodeID, parts map[holdfast.NodeID][]int) error {
	var whats []string
	for _, n := range order {
		runs := slices.DeleteFunc(slices.Clone(parts[n]), func(run int) bool { return x.ended[run] })
		if x.lost[n] != nil && len(runs) > 0 {
			whats = append(whats, fmt.Sprintf("node %s was lost while it ran %s", n, ranges(runs)))
		}
	}
	if len(whats) == 0 {
		return nil
	}
	return holdfast.WithHint(errors.New(strings.Join(whats, "; ")),
		"the steps there may have had effects, so they are not repeated; run the job again if they can be, `holdfast node ls` shows the nodes that are up")
}

// ranges lists ascending indices: "run 3", or "runs 0 to 4, 7".
func ranges(runs []int) string {
	var parts []string
	for i := 0; i < len(runs); {
		end := i
		for end+1 < len(runs) && runs[end+1] == runs[end]+1 {
			end++
		}
		switch end - i {
		case 0:
			parts = append(parts, strconv.Itoa(runs[i]))
		case 1:
			parts = append(parts, strconv.Itoa(runs[i]), strconv.Itoa(runs[end]))
		default:
			parts = append(parts, fmt.Sprintf("%d to %d", runs[i], runs[end]))
		}
		i = end + 1
	}
	if len(runs) == 1 {
		return "run " + parts[0]
	}
	return "runs " + strings.Join(parts, ", ")
}
