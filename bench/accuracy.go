package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/lab"
)

// AccuracyOptions say how `holdfast bench accuracy` measures.
type AccuracyOptions struct {
	Runs int           // of each drill and each healthy host; 0 is 20
	For  time.Duration // of each look of the doctor; 0 is 30 s
	Only []string      // rows by name; empty: all
	// Markdown prints the table as docs/doctor.md has it; Page is a file whose
	// table is written anew, "" is none.
	Markdown bool
	Page     string
	// Doctor is the command of the doctor: this program's own; --for and --json
	// are added.
	Doctor []string
	// Worker is the command that plays drill.Role. Its first word is mounted into
	// containers: a static program, not by way of /proc.
	Worker []string
	// Agent and Server are as in BootOptions.
	Agent, Server []string
	Progress      io.Writer // a line for each look; nil is nowhere
}

// Check reports what cannot be; a zero that stands for a default cannot either.
func (o AccuracyOptions) Check() error {
	names := accuracyNames()
	for _, name := range o.Only {
		if !slices.Contains(names, name) {
			return fmt.Errorf("there is no row %q; there are %s", name, strings.Join(names, ", "))
		}
	}
	switch {
	case o.Runs < 1:
		return fmt.Errorf("runs are %d, there has to be one at least", o.Runs)
	case o.For < doctor.MinFor || o.For > drill.MaxFor/2:
		return fmt.Errorf("a look takes %v, it has to be from %v to %v", o.For, doctor.MinFor, drill.MaxFor/2)
	}
	return nil
}

// Accuracy runs every drill, and three hosts that are healthy, each several times on
// an engine of its own, and has the doctor look: does it name each drill with its
// container, and nothing where nothing is wrong? It works inside a lab only
// (lab.Reenter).
//
// Score is the share of the drills' runs that were named right. Failed counts the
// others, and each finding on a healthy host and about an innocent container.
func Accuracy(ctx context.Context, o AccuracyOptions) (Result, error) {
	o.Runs, o.For = cmp.Or(o.Runs, 20), cmp.Or(o.For, 30*time.Second)
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	x, err := newTruthBench(ctx, o)
	res, err := conduct(ctx, x, err)
	if err != nil || o.Page == "" {
		return res, err
	}
	return res, res.Details.(*AccuracyTable).WritePage(o.Page)
}

// innocents is how many containers are there that do nothing wrong.
const innocents = 8

// innocentCommand writes a line and starts a program, every second.
var innocentCommand = []string{"/bin/sh", "-c", "while :; do echo still here >/tmp/log; sleep 1; done"}

// accuracyBench is one run of the experiment.
type accuracyBench struct {
	o       AccuracyOptions
	boot    *bootBench // an engine and an agent
	groups  cgroup.Mounts
	home    *benchGroup  // where this program's own processes are
	scratch string       // for the drills' files, on a disk
	config  string       // that the doctor finds the engine by
	made    atomic.Int64 // memory cgroups so far
	peaks   []float64    // MiB of each look
	took    []float64    // seconds of each look
}

func newTruthBench(ctx context.Context, o AccuracyOptions) (*accuracyBench, error) {
	x := &accuracyBench{o: o}
	var err error
	if x.boot, err = newBootBench(ctx, BootOptions{Agent: o.Agent, Server: o.Server}, bootModes()[:1]); err != nil {
		return x, err
	}
	if x.groups, err = cgroup.Find(proc.Host); err != nil {
		return x, err
	}
	if x.home, err = enterGroup(x.groups, x.boot.lab.CgroupParent()); err != nil {
		return x, err
	}
	busybox, err := lab.Busybox()
	if err == nil {
		err = x.boot.lab.Import(ctx, busybox)
	}
	if err != nil {
		return x, err
	}
	x.scratch = x.boot.lab.Scratch()
	if err := os.MkdirAll(x.scratch, 0o755); err != nil {
		return x, err
	}
	if x.config, err = writeEngineConfig(x.boot.dir, x.boot.lab.Host()); err != nil {
		return x, err
	}
	for i := range innocents {
		id, err := x.boot.engine.Create(ctx, engine.Spec{Name: fmt.Sprintf("innocent-%d", i), Image: busyboxImage, Command: innocentCommand, Init: true, Network: "none"})
		if err == nil {
			err = x.boot.engine.Start(ctx, id)
		}
		if err != nil {
			return x, err
		}
	}
	return x, nil
}

func (x *accuracyBench) close() error {
	var err error
	if x.home != nil {
		err = x.home.leave() // before the engine goes, with all that is in its groups
	}
	if x.boot != nil {
		err = errors.Join(err, x.boot.close())
	}
	return err
}

func (x *accuracyBench) run(ctx context.Context) (Result, error) {
	info, err := x.boot.engine.Info(ctx)
	if err != nil {
		return Result{}, err
	}
	rows := x.rows()
	table := newAccuracyTable(rows, x.o)
	for run := range x.o.Runs {
		table.Load = max(table.Load, loadAverage())
		for i := range rows { // which goes first changes from turn to turn
			i = (i + run) % len(rows)
			fmt.Fprintf(x.o.Progress, "%d of %d: %s\n", run+1, x.o.Runs, rows[i].name)
			if err := x.one(ctx, rows[i], &table.Rows[i]); err != nil {
				return Result{}, fmt.Errorf("%s: %w", rows[i].name, err)
			}
		}
	}
	r := Result{
		Name:    "accuracy",
		Machine: ThisMachine(fmt.Sprintf("%s %s, %s, cgroup %s", info.Name, info.Version, info.StorageDriver, info.CgroupVersion)),
		Rows:    []Row{NewRow("a look", "s", x.took), NewRow("its memory, at most", "MiB", x.peaks)},
		Details: table, Scale: "the share of the drills' runs that were named right",
	}
	r.Score, r.Failed = table.sum()
	table.Machine = r.Machine
	table.Longest, table.Peak = r.Rows[0].Max, r.Rows[1].Max
	r.Notes = table.notes()
	return r, nil
}

// tries is how often a drill is looked at where others who use this machine were
// found to do the same, and more of it.
const tries = 3

// one makes a row's host, looks once, and enters what came out.
func (x *accuracyBench) one(ctx context.Context, row accuracyRow, into *AccuracyRow) error {
	for try := 1; ; try++ {
		o, want, err := x.judged(ctx, row)
		if err != nil {
			return err
		}
		fmt.Fprintf(x.o.Progress, "  %s\n", o)
		into.Container = want.container != ""
		if o.outdone && try < tries {
			into.Outdone++
			continue
		}
		into.add(o)
		return nil
	}
}

// judged makes a row's host, has the doctor look and judges what it says.
func (x *accuracyBench) judged(ctx context.Context, row accuracyRow) (o outcome, want expected, err error) {
	look := func(w expected) error {
		l, err := x.look(ctx)
		if err != nil {
			return err
		}
		x.took, x.peaks = append(x.took, l.took.Seconds()), append(x.peaks, float64(l.peak)/(1<<20))
		w.made = int(x.made.Load())
		want, o = w, judge(w, l, x.ours(w))
		return nil
	}
	if row.drill.Name == "" {
		err = x.healthy(ctx, row, look)
	} else {
		err = x.drill(ctx, row.drill, look)
	}
	return o, want, err
}

// ours reports whether a control group is one that this bench has made.
func (x *accuracyBench) ours(want expected) func(group string) bool {
	return func(group string) bool {
		return within(group, x.boot.lab.CgroupParent()) || want.group != "" && within(group, want.group)
	}
}

func within(path, group string) bool { return path == group || strings.HasPrefix(path, group+"/") }

// ruleNames are the rules in the order of docs/doctor.md.
func ruleNames() []string {
	var names []string
	for _, r := range rule.All() {
		names = append(names, r.Name)
	}
	return names
}
