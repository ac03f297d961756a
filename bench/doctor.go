package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
)

// DoctorOptions configures `holdfast bench doctor`.
type DoctorOptions struct {
	For    time.Duration // length of one recording; 0 is 30 s
	Hz     int           // 0 is 99
	Rounds int           // recordings of each kind; 0 is 3
	Pairs  int           // pairs of windows with and without a recording; 0 is 6
	Window time.Duration // length of one window; 0 is 5 s
	// Record is the command line `holdfast doctor record`. Load and Fold run the
	// roles DoctorLoad and DoctorFold.
	Record, Load, Fold []string
	Progress           io.Writer // receives a line for each long step; nil discards them
}

func (o DoctorOptions) withDefaults() DoctorOptions {
	o.For, o.Window = cmp.Or(o.For, 30*time.Second), cmp.Or(o.Window, 5*time.Second)
	o.Hz, o.Rounds, o.Pairs = cmp.Or(o.Hz, 99), cmp.Or(o.Rounds, 3), cmp.Or(o.Pairs, 6)
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o
}

// Check reports invalid values.
func (o DoctorOptions) Check() error {
	if o.For < time.Second || o.Window < time.Second || o.Hz < 1 || o.Rounds < 1 || o.Pairs < 1 {
		return fmt.Errorf("a recording of %v, a window of %v (both at least 1s), %d Hz, %d rounds, %d pairs (each at least 1)", o.For, o.Window, o.Hz, o.Rounds, o.Pairs)
	}
	return nil
}

// Names of the rows.
const (
	rowPerfRecord = "perf record"
	rowPerfScript = "perf script"
	rowPerfFold   = "folding"
	rowPerf       = "perf, all three"
	rowRecord     = "holdfast doctor record"
	rowSlower     = "slowdown by a recording"
	rowNoise      = "slowdown by nothing"
)

// Doctor measures the CPU time of a recording of all CPUs: `holdfast doctor record`
// against `perf record`, `perf script` and folding, in turns, under the same load on
// all CPUs. It also measures how much a recording slows that load, in windows with a
// recording between windows without. It needs root.
//
// Score is the CPU time of perf ÷ that of Holdfast.
func Doctor(ctx context.Context, o DoctorOptions) (Result, error) {
	o = o.withDefaults()
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	x, err := newDoctorBench(ctx, o)
	return conduct(ctx, x, err)
}

// doctorBench is one run of the experiment.
type doctorBench struct {
	o      DoctorOptions
	perf   string // path of perf
	dir    string
	load   *loadChild
	cpu    map[string][]float64 // row → milliseconds
	seen   [2][]float64         // samples: perf, holdfast
	failed int
	notes  []string
}

func newDoctorBench(ctx context.Context, o DoctorOptions) (*doctorBench, error) {
	x := &doctorBench{o: o, cpu: make(map[string][]float64)}
	var err error
	if x.perf, err = exec.LookPath("perf"); err != nil {
		return x, holdfast.WithHint(fmt.Errorf("the peer perf is not installed: %w", err), "apt-get install linux-perf")
	}
	if x.dir, err = os.MkdirTemp("", "holdfast-bench-"); err != nil {
		return x, err
	}
	x.load, err = startLoad(ctx, o.Load)
	return x, err
}

func (x *doctorBench) close() error {
	var errs []error
	if x.load != nil {
		errs = append(errs, x.load.stop())
	}
	if x.dir != "" {
		errs = append(errs, os.RemoveAll(x.dir))
	}
	return errors.Join(errs...)
}

func (x *doctorBench) run(ctx context.Context) (Result, error) {
	ways := []func(context.Context) error{x.byPerf, x.byHoldfast}
	for round := range x.o.Rounds {
		for i := range ways {
			if err := ways[(round+i)%len(ways)](ctx); err != nil {
				return Result{}, err
			}
		}
	}
	slower, noise, err := x.slowdown(ctx)
	if err != nil {
		return Result{}, err
	}
	r := Result{Name: "doctor", Machine: ThisMachine(""), Failed: x.failed}
	for _, row := range []string{rowPerfRecord, rowPerfScript, rowPerfFold, rowPerf, rowRecord} {
		r.Rows = append(r.Rows, NewRow(row, "ms CPU", x.cpu[row]))
	}
	r.Rows = append(r.Rows, NewRow(rowSlower, "%", slower), NewRow(rowNoise, "%", noise))
	theirs, ours := r.Rows[3].P50, r.Rows[4].P50
	if ours > 0 {
		r.Score = theirs / ours
	}
	ofOne := func(ms float64) float64 { return ms / float64(x.o.For.Milliseconds()) * 100 }
	r.Notes = append(x.notes,
		fmt.Sprintf("recordings of %v at %d Hz under a load on %d CPUs: perf took %.2f %% of one CPU, holdfast %.2f %%, from its start to its end",
			x.o.For, x.o.Hz, runtime.NumCPU(), ofOne(theirs), ofOne(ours)),
		fmt.Sprintf("samples in the median: perf %.0f, holdfast %.0f", NewRow("", "", x.seen[0]).P50, NewRow("", "", x.seen[1]).P50),
		"slowdown: of the load's throughput in a window, against the windows before and after without a recording; by nothing: of one of these against the other",
	)
	return r, nil
}

// byPerf records with perf, writes the samples as text and folds them.
func (x *doctorBench) byPerf(ctx context.Context) error {
	fmt.Fprintf(x.o.Progress, "perf record for %v\n", x.o.For)
	data := filepath.Join(x.dir, "perf.data")
	record := exec.CommandContext(ctx, x.perf, "record", "-a", "-g", "-F", strconv.Itoa(x.o.Hz), "-e", "cpu-clock", "-o", data,
		"--", "sleep", strconv.FormatFloat(x.o.For.Seconds(), 'f', -1, 64))
	recordCPU, _, err := measure(record)
	if err != nil {
		return err
	}
	fmt.Fprintln(x.o.Progress, "perf script and folding")
	// Without -no-inline perf runs addr2line for each address, which takes minutes.
	script := exec.CommandContext(ctx, x.perf, "script", "--no-inline", "-i", data)
	fold := exec.CommandContext(ctx, x.o.Fold[0], x.o.Fold[1:]...)
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	script.Stdout, fold.Stdin = w, r
	folded := &strings.Builder{}
	fold.Stdout = folded
	if err := fold.Start(); err != nil {
		return errors.Join(err, r.Close(), w.Close())
	}
	scriptCPU, _, err := measure(script)
	err = errors.Join(err, w.Close(), fold.Wait(), r.Close())
	if err != nil {
		return err
	}
	foldCPU := cpuOf(fold)
	lines := strings.Split(strings.TrimSpace(folded.String()), "\n")
	samples, err := strconv.Atoi(lines[len(lines)-1])
	if err != nil {
		return fmt.Errorf("count perf's samples: %w", err)
	}
	x.saw(0, samples)
	for row, cpu := range map[string]time.Duration{rowPerfRecord: recordCPU, rowPerfScript: scriptCPU, rowPerfFold: foldCPU, rowPerf: recordCPU + scriptCPU + foldCPU} {
		x.cpu[row] = append(x.cpu[row], millis(cpu))
	}
	return os.Remove(data)
}

// byHoldfast records with Holdfast, which folds while it records.
func (x *doctorBench) byHoldfast(ctx context.Context) error {
	fmt.Fprintf(x.o.Progress, "holdfast doctor record for %v\n", x.o.For)
	cmd := x.recording(ctx, x.o.For)
	cpu, out, err := measure(cmd)
	if err != nil {
		return err
	}
	var told struct {
		Samples int `json:"samples"`
		Meta    struct {
			Lost int `json:"lost"`
		} `json:"meta"`
	}
	if err := json.Unmarshal(out, &told); err != nil {
		return fmt.Errorf("holdfast doctor record: %w", err)
	}
	x.saw(1, told.Samples)
	if told.Meta.Lost > 0 {
		x.failed++
		x.notes = append(x.notes, fmt.Sprintf("holdfast lost %d records", told.Meta.Lost))
	}
	x.cpu[rowRecord] = append(x.cpu[rowRecord], millis(cpu))
	return nil
}

// saw notes the number of samples of a recording. All CPUs are busy, so the expected
// number is known unless other workloads use the CPUs. Too few samples of Holdfast
// count as failed if perf has more.
func (x *doctorBench) saw(recorder, samples int) {
	x.seen[recorder] = append(x.seen[recorder], float64(samples))
	if want := x.o.For.Seconds() * float64(x.o.Hz*runtime.NumCPU()); float64(samples) < want/2 {
		if theirs := x.seen[0]; recorder == 1 && len(theirs) > 0 && float64(samples) < theirs[len(theirs)-1]/2 {
			x.failed++
		}
		x.notes = append(x.notes, fmt.Sprintf("%s took %d of %.0f samples", [2]string{"perf", "holdfast"}[recorder], samples, want))
	}
}

func (x *doctorBench) recording(ctx context.Context, over time.Duration) *exec.Cmd {
	args := append(append([]string{}, x.o.Record...), "-o", filepath.Join(x.dir, "x.pb.gz"), "--for", over.String(), "--hz", strconv.Itoa(x.o.Hz), "--json")
	return exec.CommandContext(ctx, args[0], args[1:]...)
}

// slowdown compares the load's throughput while a recording's process runs with the
// throughput before and after. Both results are in percent.
func (x *doctorBench) slowdown(ctx context.Context) (slower, noise []float64, err error) {
	var last float64 // throughput of the window before
	for pair := range x.o.Pairs {
		fmt.Fprintf(x.o.Progress, "throughput with and without a recording, %d of %d\n", pair+1, x.o.Pairs)
		if pair == 0 {
			if last, err = x.load.rate(ctx, func() error { return tasks.Sleep(ctx, x.o.Window) }); err != nil {
				return nil, nil, err
			}
		}
		with, err := x.load.rate(ctx, func() error {
			_, _, err := measure(x.recording(ctx, x.o.Window))
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		next, err := x.load.rate(ctx, func() error { return tasks.Sleep(ctx, x.o.Window) })
		if err != nil {
			return nil, nil, err
		}
		without := (last + next) / 2
		slower = append(slower, 100*(1-with/without))
		noise = append(noise, 100*(1-next/last))
		last = next
	}
	return slower, noise, nil
}

// measure runs a command and returns the CPU time of it and its children.
func measure(cmd *exec.Cmd) (cpu time.Duration, stdout []byte, err error) {
	var out, errs strings.Builder
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil {
		return 0, nil, fmt.Errorf("%s: %w: %.500s", strings.Join(cmd.Args, " "), err, errs.String())
	}
	return cpuOf(cmd), []byte(out.String()), nil
}

func cpuOf(cmd *exec.Cmd) time.Duration {
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}
