package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/hosts/doctor/rule"
	"holdfast/internal/platform/tasks"
)

// ExamOptions configures `holdfast bench accuracy --faults`.
type ExamOptions struct {
	Dir     string        // the faults' directory, see docs/doctor-exam.md
	Seed    uint64        // of the order and the distractors
	For     time.Duration // duration of each doctor run; 0 is 12 s
	Within  time.Duration // the doctor is run again until this time after the fault's start; 0 is 30 s
	HeldOut bool          // only the faults that are held out; otherwise only the others
	Healthy int           // doctor runs on healthy hosts
	Only    []string      // names of faults; empty means all
	// Peers are programs, NAME=PROGRAM, that run another tool during the examination and print
	// a line for each alarm that it raises. With peers a fault lasts for Within.
	Peers         []string
	Doctor, Agent []string  // as in AccuracyOptions
	Progress      io.Writer // receives lines; nil discards them
}

// Check reports invalid values. Defaults must be filled in before.
func (o ExamOptions) Check() error {
	if o.For < doctor.MinFor || o.Within < o.For || o.Within > faultLimit {
		return fmt.Errorf("a doctor run takes %v and a fault %v; the first is at least %v, the second is longer and at most %v", o.For, o.Within, doctor.MinFor, faultLimit)
	}
	if o.Healthy < 0 || o.Healthy > 100_000 {
		return fmt.Errorf("healthy is %d, it must be 0 to 100000", o.Healthy)
	}
	for _, p := range o.Peers {
		if name, program, ok := strings.Cut(p, "="); !ok || name == "" || program == "" {
			return fmt.Errorf("peer %q must be NAME=PROGRAM", p)
		}
	}
	faults, err := LoadFaults(o.Dir)
	if err != nil {
		return err
	}
	for _, name := range o.Only {
		if !slices.ContainsFunc(faults, func(f Fault) bool { return f.Name == name }) {
			return fmt.Errorf("%s has no fault %q", o.Dir, name)
		}
	}
	return nil
}

// Exam runs faults that the doctor's authors did not write, in random order beside random
// distractors, and judges whether the doctor names the container and the cause. Then it runs
// the doctor on healthy hosts and counts findings that are worse than a notice. It works only
// inside a lab (lab.Reenter).
//
// Score is the share of faults of which each cause was named. Failed counts the others, and
// the false findings.
func Exam(ctx context.Context, o ExamOptions) (Result, error) {
	o.For, o.Within = cmp.Or(o.For, 12*time.Second), cmp.Or(o.Within, 30*time.Second)
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	x, err := newExamBench(ctx, o)
	return conduct(ctx, x, err)
}

// examBench is one run of the experiment.
type examBench struct {
	*accuracyBench // an engine, an agent and innocent containers
	exam           ExamOptions
	faults         []Fault
	programs       string // directory of the faults' programs
	random         *rand.Rand
	peers          []*peer
}

func newExamBench(ctx context.Context, o ExamOptions) (*examBench, error) {
	x := &examBench{exam: o, random: rand.New(rand.NewPCG(o.Seed, 0))}
	var err error
	x.accuracyBench, err = newTruthBench(ctx, AccuracyOptions{For: o.For, Doctor: o.Doctor, Agent: o.Agent, Progress: o.Progress})
	if err != nil {
		return x, err
	}
	if x.faults, err = LoadFaults(o.Dir); err != nil {
		return x, err
	}
	if err = o.enough(x.faults); err != nil {
		return x, err
	}
	x.programs = filepath.Join(x.scratch, "fault-programs")
	if err = os.Mkdir(x.programs, 0o755); err != nil {
		return x, err
	}
	able := slices.DeleteFunc(slices.Clone(x.faults), func(f Fault) bool { return len(f.missing()) > 0 || !x.runs(f) })
	return x, buildFaults(o.Dir, x.programs, able)
}

// enough returns an error if healthy hosts are wanted and none of the manifests is one.
func (o ExamOptions) enough(faults []Fault) error {
	if o.Healthy == 0 || slices.ContainsFunc(faults, Fault.healthy) {
		return nil
	}
	return holdfast.WithHint(fmt.Errorf("%s has no healthy host that can run here", o.Dir), "add a manifest without a truth, or leave out --healthy")
}

// pick returns the faults of a kind, in random order.
func (x *examBench) pick(kind func(Fault) bool) []Fault {
	fs := slices.DeleteFunc(slices.Clone(x.faults), func(f Fault) bool { return !kind(f) })
	x.random.Shuffle(len(fs), func(i, j int) { fs[i], fs[j] = fs[j], fs[i] })
	return fs
}

func (x *examBench) run(ctx context.Context) (Result, error) {
	info, err := x.boot.engine.Info(ctx)
	if err != nil {
		return Result{}, err
	}
	t := &ExamTable{Seed: x.exam.Seed, HeldOut: x.exam.HeldOut, Rows: []ExamRow{}, Healthy: ExamHealthy{False: []string{}, ByRule: map[string]int{}, Peers: map[string]*PeerHealthy{}}}
	if err := x.startPeers(ctx); err != nil {
		return Result{}, err
	}
	for _, p := range x.peers {
		t.Healthy.Peers[p.name] = &PeerHealthy{Said: []string{}}
	}
	for _, f := range x.pick(func(f Fault) bool { return len(f.Truth) > 0 && x.wanted(f) }) {
		t.Load = max(t.Load, loadAverage())
		row, err := x.examine(ctx, f)
		if err != nil {
			return Result{}, fmt.Errorf("fault %s: %w", f.Name, err)
		}
		fmt.Fprintln(x.exam.Progress, row.line())
		t.Rows = append(t.Rows, row)
	}
	if err := x.healthyLooks(ctx, &t.Healthy); err != nil {
		return Result{}, err
	}
	r := Result{
		Name:    "accuracy --faults",
		Machine: ThisMachine(fmt.Sprintf("%s %s, %s, cgroup %s", info.Name, info.Version, info.StorageDriver, info.CgroupVersion)),
		Details: t, Scale: "share of the faults of which the doctor named the container and the cause",
	}
	r.Score, r.Failed = t.sum()
	return r, nil
}

// runs reports whether the examination may start a fault, a distractor or a healthy host.
func (x *examBench) runs(f Fault) bool {
	if len(f.Truth) > 0 {
		return x.wanted(f)
	}
	return f.Distractor || x.exam.Healthy > 0
}

func (x *examBench) wanted(f Fault) bool {
	if len(x.exam.Only) > 0 {
		return slices.Contains(x.exam.Only, f.Name)
	}
	return f.HeldOut == x.exam.HeldOut
}

// examine runs one fault beside distractors, and the doctor until it has named all causes or
// the time is over.
func (x *examBench) examine(ctx context.Context, f Fault) (row ExamRow, err error) {
	row = ExamRow{Fault: f.Name, About: f.About, HeldOut: f.HeldOut, Said: []string{}, Unseen: []string{}, Wrong: []string{}}
	for _, t := range f.Truth {
		known := slices.ContainsFunc(t.Cause, func(c string) bool { return slices.Contains(ruleNames(), c) })
		row.Verdicts = append(row.Verdicts, ExamVerdict{Truth: t, Known: known})
	}
	if missing := f.missing(); len(missing) > 0 {
		row.Skipped = "this host has no " + strings.Join(missing, ", ")
		return row, nil
	}
	beside, stop, err := x.distract(ctx)
	defer func() { err = errors.Join(err, stop()) }()
	row.Beside = beside
	if notStarted(ctx, err) {
		row.Skipped = err.Error()
		return row, nil
	}
	if err != nil {
		return row, err
	}
	heard := x.heard()
	limited, cancel := context.WithTimeout(ctx, f.limit()+readyLimit)
	defer cancel()
	s, err := x.begin(limited, f)
	defer func() { err = errors.Join(err, s.end()) }()
	if notStarted(ctx, err) {
		row.Skipped = err.Error()
		return row, nil
	}
	if err != nil {
		return row, err
	}
	w := suspect{stage: s, lab: x.boot.lab.CgroupParent()}
	s.begun = time.Now()
	for time.Since(s.begun)+x.exam.For <= x.exam.Within+2*time.Second && !row.right() || len(row.Said) == 0 && time.Since(s.begun) < x.exam.For {
		l, err := x.look(limited)
		if late(ctx, err) { // a doctor that does not end has named nothing
			row.Said = append(row.Said, "the doctor has not ended: "+err.Error())
			break
		}
		if err != nil {
			return row, err
		}
		wrong := judgeFault(row.Verdicts, l, w, time.Since(s.begun).Seconds())
		row.Said, row.Unseen, row.Wrong = tellAll(l.report.Findings), tellGaps(l.report.Gaps), tellAll(wrong)
	}
	if !row.right() {
		if row.Skipped, err = s.ended(limited); err != nil || row.Skipped != "" {
			return row, err
		}
	}
	row.Peers, err = x.peersSaid(ctx, s, heard)
	return row, err
}

// peersSaid waits until the peers have had as much time as the doctor may have, and judges them.
func (x *examBench) peersSaid(ctx context.Context, s *faultStage, heard map[string]int) (map[string]PeerVerdict, error) {
	if len(x.peers) == 0 {
		return nil, nil
	}
	if tasks.Sleep(ctx, time.Until(s.begun.Add(x.exam.Within))) != nil {
		return nil, ctx.Err()
	}
	said, err := x.since(heard)
	verdicts := make(map[string]PeerVerdict)
	for name, lines := range said {
		verdicts[name] = judgePeer(lines, s)
	}
	return verdicts, err
}

// notStarted reports whether an error is that of a program which did not start. It concerns only the
// fault that it was for or stood beside. If the undoing of a fault fails, the examination ends, because
// the host is not as it was.
func notStarted(ctx context.Context, err error) bool {
	return errors.Is(err, errFault) || late(ctx, err)
}

// late reports whether an error is the end of a fault's time, as on an emulated machine. It concerns
// only this fault while the examination's own ctx is not done.
func late(ctx context.Context, err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
}

func tellAll(fs []doctor.Finding) []string {
	told := []string{}
	for _, f := range fs {
		told = append(told, string(f.Severity)+" "+tell(f))
	}
	return told
}

func tellGaps(gaps []fact.Gap) []string {
	told := []string{}
	for _, g := range gaps {
		told = append(told, fmt.Sprintf("not seen by probe %s: %s", g.Probe, g.Why))
	}
	return told
}

// distractors is the number of kinds of healthy work beside a fault.
const distractors = 2

// booting is the distractor that boots sessions by the agent.
const booting = "booting"

// distract starts random distractors. stop must be called in any case.
func (x *examBench) distract(ctx context.Context) (names []string, stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	kinds := append(x.pick(func(f Fault) bool { return f.Distractor && len(f.missing()) == 0 }), Fault{Name: booting})
	x.random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	var stops []func() error
	stop = func() error {
		cancel()
		var errs []error
		for _, s := range stops {
			errs = append(errs, s())
		}
		return errors.Join(errs...)
	}
	for _, f := range kinds[:min(distractors, len(kinds))] {
		names = append(names, f.Name)
		if f.Name == booting {
			done := make(chan error, 1)
			go func() { done <- x.bootSessions(ctx) }()
			stops = append(stops, func() error {
				if err := <-done; !errors.Is(err, context.Canceled) && ctx.Err() == nil {
					return err
				}
				return nil
			})
			continue
		}
		s, err := x.begin(ctx, f)
		stops = append(stops, s.end)
		if err != nil {
			return names, stop, fmt.Errorf("distractor %s: %w", f.Name, err)
		}
	}
	return names, stop, nil
}

// looksEach is the number of doctor runs on one healthy host.
const looksEach = 10

// healthyLooks runs the doctor on healthy hosts: those of manifests without a truth, beside
// distractors.
func (x *examBench) healthyLooks(ctx context.Context, h *ExamHealthy) error {
	for h.Looks < x.exam.Healthy {
		for _, f := range x.pick(Fault.healthy) {
			if err := x.healthyHost(ctx, f, h); err != nil {
				return fmt.Errorf("healthy %s: %w", f.Name, err)
			}
		}
	}
	return nil
}

func (x *examBench) healthyHost(ctx context.Context, f Fault, h *ExamHealthy) (err error) {
	if h.Looks >= x.exam.Healthy {
		return nil
	}
	beside, stop, err := x.distract(ctx)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	s, err := x.begin(ctx, f)
	defer func() { err = errors.Join(err, s.end()) }()
	if err != nil {
		return err
	}
	w := suspect{stage: s, lab: x.boot.lab.CgroupParent()}
	for range min(looksEach, x.exam.Healthy-h.Looks) {
		heard := x.heard()
		l, err := x.look(ctx)
		if err != nil {
			return err
		}
		said, err := x.since(heard)
		if err != nil {
			return err
		}
		for name, lines := range said {
			h.Peers[name].add(lines, f.Name)
		}
		h.Looks++
		h.add(judgeFault(nil, l, w, 0), f.Name+" beside "+strings.Join(beside, ", "))
		for _, found := range l.report.Findings {
			if found.Severity == rule.Notice {
				h.Notices++
			}
		}
	}
	fmt.Fprintf(x.exam.Progress, "healthy: %d looks, %d with a false finding\n", h.Looks, h.Wrong)
	return nil
}
