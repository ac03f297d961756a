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

// AccuracyOptions configures `holdfast bench accuracy`.
type AccuracyOptions struct {
	Runs int           // runs of each drill and each healthy host; 0 is 20
	For  time.Duration // duration of each doctor run; 0 is 30 s
	Only []string      // names of the rows to run; empty means all
	// Markdown prints the table in the format of docs/doctor.md. Page is a file
	// in which the table is replaced; "" is none.
	Markdown bool
	Page     string
	// Doctor is the command line of the doctor, normally this program. The bench
	// appends --for and --json.
	Doctor []string
	// Worker is the command line that runs drill.Role. Its first word is mounted
	// into containers, so it must be a static program and not a path below /proc.
	Worker   []string
	Agent    []string  // as in BootOptions
	Progress io.Writer // receives one line per doctor run; nil discards them
}

// Check reports invalid values. Defaults must be filled in before: a zero is invalid.
func (o AccuracyOptions) Check() error {
	names := accuracyNames()
	for _, name := range o.Only {
		if !slices.Contains(names, name) {
			return fmt.Errorf("no row is called %q; the rows are %s", name, strings.Join(names, ", "))
		}
	}
	switch {
	case o.Runs < 1:
		return fmt.Errorf("runs is %d, it must be at least 1", o.Runs)
	case o.For < doctor.MinFor || o.For > drill.MaxFor/2:
		return fmt.Errorf("the duration of a doctor run is %v, it must be from %v to %v", o.For, doctor.MinFor, drill.MaxFor/2)
	}
	return nil
}

// Accuracy runs every drill and three healthy workloads several times, on an engine
// of its own, and runs the doctor during each. The doctor must name each drill and
// its container, and must report nothing on a healthy host. Accuracy works only
// inside a lab (lab.Reenter).
//
// Score is the share of the drills' runs that the doctor named correctly. Failed
// counts the other runs, and each finding on a healthy host or about an innocent
// container.
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

// innocents is the number of harmless containers beside the drill.
const innocents = 8

// innocentCommand writes a line and starts a program once a second.
var innocentCommand = []string{"/bin/sh", "-c", "while :; do echo still here >/tmp/log; sleep 1; done"}

// accuracyBench is one run of the experiment.
type accuracyBench struct {
	o       AccuracyOptions
	boot    *bootBench // an engine and an agent
	groups  cgroup.Mounts
	home    *benchGroup  // control group of this program's own processes
	scratch string       // directory of the drills' files, on a disk
	config  string       // configuration file that names the engine to the doctor
	made    atomic.Int64 // memory cgroups made so far
	peaks   []float64    // peak memory of each doctor run, MiB
	took    []float64    // duration of each doctor run, seconds
}

func newTruthBench(ctx context.Context, o AccuracyOptions) (*accuracyBench, error) {
	x := &accuracyBench{o: o}
	var err error
	if x.boot, err = newBootBench(ctx, BootOptions{Agent: o.Agent}, bootModes()[:1]); err != nil {
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
		err = x.home.leave() // before the engine and all processes in its groups are removed
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
		for i := range rows { // the order rotates each round
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
		Details: table, Scale: "share of the drills' runs that the doctor named correctly",
	}
	r.Score, r.Failed = table.sum()
	table.Machine = r.Machine
	table.Longest, table.Peak = r.Rows[0].Max, r.Rows[1].Max
	r.Notes = table.notes()
	return r, nil
}

// tries is the maximum number of doctor runs for a drill. A run is repeated when
// another workload on this machine does the same as the drill, and more of it.
const tries = 3

// one sets up a row's host, runs the doctor once and records the outcome.
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

// judged sets up a row's host, runs the doctor and judges its report.
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

// ours reports whether this bench made the control group.
func (x *accuracyBench) ours(want expected) func(group string) bool {
	return func(group string) bool {
		return within(group, x.boot.lab.CgroupParent()) || want.group != "" && within(group, want.group)
	}
}

func within(path, group string) bool { return path == group || strings.HasPrefix(path, group+"/") }

// ruleNames lists the rules in the order of docs/doctor.md.
func ruleNames() []string {
	var names []string
	for _, r := range rule.All() {
		names = append(names, r.Name)
	}
	return names
}
