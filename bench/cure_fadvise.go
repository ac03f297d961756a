package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/hosts/doctor/drill"
	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/engine/docker"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/lab"
)

// FadviseOptions configures `holdfast bench cure-fadvise`.
type FadviseOptions struct {
	Rounds   int           // of each way, in turns; 0 is 5
	Duration time.Duration // of one measurement; 0 is 5 s
	// Program is a static program that runs, in containers, drill.Role and the role
	// Victim, which is CureVictim.
	Program, Victim string
	Progress        io.Writer // nil discards it
}

// Check reports invalid values. Defaults must be filled in before: a zero is invalid.
func (o FadviseOptions) Check() error {
	if o.Rounds < 1 || o.Rounds > 100 || o.Duration < 100*time.Millisecond || o.Duration > time.Minute {
		return fmt.Errorf("%d rounds of %v: rounds must be 1 to 100, of 100ms to 1m", o.Rounds, o.Duration)
	}
	return nil
}

// quietBar is the limit of the victim's slowdown after the cure, against a quiet host.
const quietBar = 1.2

// The ways, and the names of their rows.
var fadviseWays = []string{"quiet host", "storm of posix_fadvise", "the same, fresh container with the profile"}

// CureFadvise runs a container that storms posix_fadvise among innocent containers. It
// measures a victim's stat(2) in turns: on a quiet host, under the storm, and under the
// same load in a fresh container with the cure's seccomp profile. Under the storm the
// doctor must name the container and the call. It works only inside a lab
// (lab.Reenter).
//
// Score is the victim's p99 under the storm ÷ its p99 with the cure, the median of the
// rounds.
func CureFadvise(ctx context.Context, o FadviseOptions) (Result, error) {
	o.Rounds, o.Duration = cmp.Or(o.Rounds, 5), cmp.Or(o.Duration, 5*time.Second)
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	x := &fadviseBench{o: o, p99: make([][]float64, len(fadviseWays))}
	err := x.prepare(ctx)
	var res Result
	if err == nil {
		res, err = x.run(ctx)
	}
	if err = errors.Join(err, x.close()); err != nil {
		return Result{}, err
	}
	return res, nil
}

// fadviseBench is one run of the experiment.
type fadviseBench struct {
	o       FadviseOptions
	lab     *lab.Engine
	engine  *docker.Engine
	image   string
	profile string
	dir     string // on a disk
	host    probe.Host
	p99     [][]float64 // by way
	failed  int
	notes   []string
}

func (x *fadviseBench) prepare(ctx context.Context) (err error) {
	if x.lab, err = lab.StartEngine(ctx, lab.Options{}); err != nil {
		return err
	}
	image, err := lab.Busybox()
	if err != nil {
		return err
	}
	x.image = image.Ref
	if err := x.lab.Import(ctx, image); err != nil {
		return err
	}
	if x.engine, err = docker.Open(ctx, docker.Config{Host: x.lab.Host()}); err != nil {
		return err
	}
	x.dir = x.lab.Scratch()
	if err := os.MkdirAll(x.dir, 0o755); err != nil {
		return err
	}
	groups, err := cgroup.Find(proc.Host)
	if err != nil {
		return err
	}
	x.host = probe.Host{Proc: proc.Host, Sys: "/sys", Groups: groups}
	x.profile = filepath.Join(x.dir, "seccomp.json")
	target := cure.FadviseTarget{Container: "logger", File: x.profile}
	if _, err := cure.Fadvise(target).Run(ctx, cure.Env{Host: x.host}, cure.Options{Apply: true}); err != nil {
		return err
	}
	for range innocents {
		id, err := x.engine.Create(ctx, engine.Spec{Image: x.image, Network: "none", Command: []string{"sh", "-c", "while :; do sleep 1; done"}})
		if err != nil {
			return err
		}
		if err := x.engine.Start(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

func (x *fadviseBench) close() error {
	var errs []error
	if x.engine != nil {
		errs = append(errs, x.engine.Close())
	}
	if x.lab != nil {
		errs = append(errs, x.lab.Stop())
	}
	return errors.Join(errs...)
}

func (x *fadviseBench) run(ctx context.Context) (Result, error) {
	info, err := x.engine.Info(ctx)
	if err != nil {
		return Result{}, err
	}
	for round := range x.o.Rounds {
		for i := range fadviseWays {
			way := (i + round) % len(fadviseWays) // the order rotates
			if err := x.way(ctx, way, round == 0); err != nil {
				return Result{}, fmt.Errorf("%s: %w", fadviseWays[way], err)
			}
		}
	}
	r := Result{Name: "cure-fadvise", Machine: ThisMachine(fmt.Sprintf("%s %s, %s, cgroup %s", info.Name, info.Version, info.StorageDriver, info.CgroupVersion))}
	for way, name := range fadviseWays {
		r.Rows = append(r.Rows, NewRow("stat p99, "+name, "µs", x.p99[way]))
	}
	// Ratios per round, because the machine's other load changes between rounds.
	storm, cured, gain := NewRow("storm ÷ quiet", "×", ratios(x.p99[1], x.p99[0])), NewRow("with the profile ÷ quiet", "×", ratios(x.p99[2], x.p99[0])), NewRow("", "", ratios(x.p99[1], x.p99[2]))
	r.Rows = append(r.Rows, storm, cured)
	if cured.P50 > quietBar {
		x.failed++
		x.notes = append(x.notes, "with the cure, the victim's slowdown exceeds the limit")
	}
	r.Score, r.Failed = gain.P50, x.failed
	r.Notes = append(x.notes, fmt.Sprintf("the storm makes the victim's p99 %.2f times that of a quiet host, with the cure it is %.2f times (the limit is %.1f): medians of the rounds' ratios", storm.P50, cured.P50, quietBar))
	return r, nil
}

// ratios divides round by round.
func ratios(a, b []float64) []float64 {
	rs := make([]float64, len(a))
	for i := range a {
		rs[i] = a[i] / b[i]
	}
	return rs
}

// profiled creates containers with the profile, as a template with the profile does.
type profiled struct {
	drill.Engine
	file string
}

func (p profiled) Create(ctx context.Context, s engine.Spec) (string, error) {
	s.Seccomp = p.file
	return p.Engine.Create(ctx, s)
}

// way measures the victim once.
func (x *fadviseBench) way(ctx context.Context, way int, look bool) error {
	measure := func() error {
		p99, err := x.victim(ctx)
		if err == nil {
			x.p99[way] = append(x.p99[way], p99)
			fmt.Fprintf(x.o.Progress, "%s: p99 of stat %.1f µs\n", fadviseWays[way], p99)
		}
		return err
	}
	if way == 0 {
		return measure()
	}
	d, err := drill.Find("fadvise")
	if err != nil {
		return err
	}
	var e drill.Engine = x.engine
	if way == 2 {
		e = profiled{e, x.profile}
	}
	standing, cancel := context.WithCancel(ctx)
	defer cancel()
	ready, ended := make(chan drill.Running, 1), make(chan error, 1)
	go func() {
		ended <- drill.Run(standing, d, drill.Options{For: drill.MaxFor, Dir: x.dir, Image: x.image, Engine: e, Worker: []string{x.o.Program, drill.Role},
			Groups: x.host.Groups, Ready: func(r drill.Running) { ready <- r }})
	}()
	select {
	case at := <-ready:
		if look {
			err = x.look(ctx, at, way == 1)
		}
		err = errors.Join(err, measure())
		cancel()
		return errors.Join(err, <-ended)
	case err := <-ended:
		return err
	}
}

// look runs the doctor. It must find the storm and name its container and call; with
// the cure it must find nothing.
func (x *fadviseBench) look(ctx context.Context, at drill.Running, storm bool) error {
	var probes []probe.Probe
	for _, p := range probe.All() {
		if !p.Busy {
			probes = append(probes, p)
		}
	}
	r, err := doctor.Examination{Host: x.host, For: 3 * time.Second, Engine: x.engine, Probes: probes}.Run(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(r.Findings, func(f doctor.Finding) bool { return f.Rule == at.Rule })
	switch {
	case !storm && i >= 0:
		x.failed++
		x.notes = append(x.notes, "a finding remains with the cure: "+r.Findings[i].Title)
	case storm && i < 0:
		x.failed++
		x.notes = append(x.notes, "the doctor did not find the storm")
	case storm:
		f := r.Findings[i]
		call := strings.Join(f.Subject.Kernel, " ")
		if f.Subject.Container != at.Container || !strings.Contains(call, "fadvise64") {
			x.failed++
		}
		x.notes = append(x.notes, fmt.Sprintf("named among %d innocent containers: %s, %s", innocents, f.Subject.Container, f.Title))
	}
	return nil
}

// victim runs a container that measures stat(2), and returns its p99 in µs.
func (x *fadviseBench) victim(ctx context.Context) (float64, error) {
	const program = "/holdfast-bench"
	id, err := x.engine.Create(ctx, engine.Spec{Image: x.image, Network: "none", Command: []string{program, x.o.Victim, x.o.Duration.String()},
		Mounts: []engine.Mount{{Type: "bind", Source: x.o.Program, Target: program, ReadOnly: true}}})
	if err != nil {
		return 0, err
	}
	err = x.engine.Start(ctx, id)
	code := 0
	if err == nil {
		code, err = x.engine.Wait(ctx, id)
	}
	var out bytes.Buffer
	if err == nil {
		err = x.engine.Logs(ctx, id, engine.LogOptions{Tail: -1}, &out)
	}
	err = errors.Join(err, x.engine.Remove(ctx, id))
	if err != nil {
		return 0, err
	}
	var p99 float64
	if code != 0 || json.Unmarshal(out.Bytes(), &p99) != nil {
		return 0, fmt.Errorf("the victim exited with code %d: %s", code, out.String())
	}
	return p99, nil
}

// CureVictim is the main function of the victim. For the duration in args it calls
// stat(2) half of the time, and prints the p99 of the calls in µs.
func CureVictim(args []string, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments, want a duration", len(args))
	}
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	dir := filepath.Join(os.TempDir(), "a/b/c/d/e/f/g/h")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	const most = 4 << 20
	took := make([]float64, 0, most)
	var st unix.Stat_t
	for begin := time.Now(); time.Since(begin) < d && len(took) < most; time.Sleep(2 * time.Millisecond) {
		for burst := time.Now(); time.Since(burst) < 2*time.Millisecond && len(took) < most; {
			at := time.Now()
			if err := unix.Stat(file, &st); err != nil {
				return err
			}
			took = append(took, float64(time.Since(at).Nanoseconds())/1000)
		}
	}
	return json.NewEncoder(out).Encode(NewRow("", "", took).P99)
}
