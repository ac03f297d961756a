package reload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/bench"
	"holdfast/internal/platform/linux/proc"
)

// Victim is who is killed during a protect.
type Victim string

// The victims: processes of a protect, some of them together; and nobody, for what
// the clients wait anyway.
const (
	KillNobody   Victim = "nobody"
	KillProtect  Victim = "protect"
	KillKeeper   Victim = "keeper"
	KillCommand  Victim = "command"
	KillBoth     Victim = "command and protect"
	KillAll      Victim = "keeper and protect"
	KillStanding Victim = "standing keeper"
)

func allVictims() []Victim {
	return []Victim{KillNobody, KillProtect, KillKeeper, KillCommand, KillBoth, KillAll, KillStanding}
}

const (
	// defaultKills is how many of each victim are killed, one after the other
	// this much later in the protect.
	defaultKills = 15
	killStep     = 8 * time.Millisecond
	// killRate is how many clients come in a second at most: what is looked for
	// is who waits, and not what the machine can do.
	killRate = 200.0
	// patience is what a client may wait at most when somebody is killed: a SYN
	// that is lost with its queue comes again after a second (RFC 6298).
	patience = 1500.0 // ms
	// between two kills there is time for clients who lost a SYN.
	betweenKills = 1200 * time.Millisecond
)

// KillRun is what clients saw while one kind of victim was killed again and again,
// each time a bit later.
type KillRun struct {
	Mode    Mode   `json:"mode"`
	Victim  Victim `json:"victim"`
	Skipped string `json:"skipped,omitempty"`

	Kills    int `json:"kills"`
	Missed   int `json:"missed"` // the protect was over before
	Requests int `json:"requests"`
	// Refused are those who got no answer: who kills a restart half-way has no
	// server. What counts is how long anybody waited.
	Refused int     `json:"refused"`
	Longest float64 `json:"longest"` // ms, of all clients
	Over    int     `json:"over"`    // who waited longer than 1.5 s
}

// KillDetails are Result.Details of the experiment with kills.
type KillDetails struct {
	HAProxy string     `json:"haproxy"`
	Rate    float64    `json:"rate"` // clients per second
	Runs    []*KillRun `json:"runs"`
}

// measureKills kills whoever takes part in a protected restart, at every moment of
// it, under a load.
func (x *experiment) measureKills(ctx context.Context) (bench.Result, error) {
	d := KillDetails{Rate: min(x.o.Rate, killRate)}
	var err error
	if d.HAProxy, err = x.stack.version(ctx); err != nil {
		return bench.Result{}, err
	}
	for _, m := range x.o.Modes {
		if !m.ours() {
			continue
		}
		for _, v := range allVictims() {
			r := &KillRun{Mode: m, Victim: v}
			if err := x.killRun(ctx, r); err != nil {
				return bench.Result{}, fmt.Errorf("%s, %s: %w", m, v, err)
			}
			d.Runs = append(d.Runs, r)
		}
	}
	return d.result(), nil
}

// killRun has the clients come while one victim after the other is killed.
func (x *experiment) killRun(ctx context.Context, r *KillRun) error {
	p := &protected{x: x, backend: string(r.Mode), run: &Run{}}
	why, err := p.begin(ctx)
	if err != nil || why != "" {
		r.Skipped = why
		return err
	}
	over := make(chan struct{})
	ended := make(chan error, 1)
	life, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer close(over)
		ended <- x.kills(life, p, r)
	}()
	rec, err := load{to: frontAddress, answer: pong, rate: min(x.o.Rate, killRate), conns: maxOpen, limit: clientLimit, more: func(int) bool {
		select {
		case <-over:
			return false
		default:
			return true
		}
	}}.run(ctx)
	stop()
	if err = errors.Join(err, <-ended); err != nil {
		return err
	}
	r.Requests = len(rec.requests)
	r.Refused, _ = rec.failed()
	for _, q := range rec.requests {
		wait := float64(q.wait) / 1000
		r.Longest = max(r.Longest, wait)
		if wait > patience {
			r.Over++
		}
	}
	fmt.Fprintf(x.o.Progress, "%s, killed is %s: %d times, %d requests, longest %.1f ms, %d over %.0f ms\n",
		r.Mode, r.Victim, r.Kills, r.Requests, r.Longest, r.Over, patience)
	return nil
}

// kills is one restart after the other, each with a killing a bit later, and after
// each a server that listens.
func (x *experiment) kills(ctx context.Context, p *protected, r *KillRun) error {
	for i := range x.o.Kills {
		if ctx.Err() != nil {
			return nil
		}
		if r.Victim == KillStanding {
			if err := p.install(ctx); err != nil {
				return err
			}
		}
		if err := x.killOne(ctx, p, r, time.Duration(i)*killStep); err != nil {
			return err
		}
		if !answers(ctx) {
			if err := errors.Join(x.stack.killProxies(), x.stack.startHAProxy(ctx)); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(betweenKills):
		}
	}
	if r.Victim == KillStanding {
		return p.uninstall(ctx)
	}
	return nil
}

// killOne protects a restart and kills the victim that long after it is there.
func (x *experiment) killOne(ctx context.Context, p *protected, r *KillRun, after time.Duration) error {
	argv := p.argv(Restart, "--", x.stack.file(Restart.script()))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if err := cmd.Start(); err != nil {
		return err
	}
	over := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ends is part of the case
		close(over)
	}()
	if r.Victim == KillNobody {
		<-over
		return nil
	}
	victims, err := x.victims(cmd.Process.Pid, r.Victim, over)
	if err != nil || victims == nil {
		r.Missed++
		<-over
		return err
	}
	select {
	case <-over:
	case <-time.After(after):
	}
	select {
	case <-over:
		r.Missed++
	default:
		for _, pid := range victims {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended by itself
		}
		r.Kills++
	}
	<-over
	return x.awaitCommand(ctx)
}

// victims waits until those are there who are to be killed. None: it is over.
func (x *experiment) victims(protect int, v Victim, over <-chan struct{}) ([]int, error) {
	for {
		keeper, command, err := x.children(protect)
		if err != nil {
			return nil, err
		}
		var who []int
		switch v {
		case KillProtect:
			who = []int{protect}
		case KillKeeper:
			who = []int{keeper}
		case KillCommand:
			who = []int{command}
		case KillBoth:
			who = []int{command, protect}
		case KillAll:
			who = []int{keeper, protect}
		case KillStanding:
			if who, err = x.standing(); err != nil {
				return nil, err
			}
		}
		if len(who) > 0 && !slices.Contains(who, 0) {
			return who, nil
		}
		select {
		case <-over:
			return nil, nil
		case <-time.After(time.Millisecond):
		}
	}
}

// children are a protect's: 0 where there is none (any more).
func (x *experiment) children(protect int) (keeper, command int, err error) {
	err = processes(func(pid, parent int, argv []string) {
		switch {
		case parent != protect:
		case slices.Contains(argv, x.stack.file(Restart.script())):
			command = pid
		case len(argv) > 0 && !slices.Contains(argv, "--"): // it has not become the command yet
			keeper = pid
		}
	})
	return keeper, command, err
}

// standing are the keepers that stand by in this lab.
func (x *experiment) standing() (pids []int, err error) {
	err = processes(func(pid, _ int, argv []string) {
		if len(argv) > 2 && argv[len(argv)-2] == "standing" && strings.HasSuffix(argv[len(argv)-1], ".sock") {
			pids = append(pids, pid)
		}
	})
	return pids, err
}

// awaitCommand waits until no restart is under way that its protect has left alone.
func (x *experiment) awaitCommand(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		running := false
		err := processes(func(_, _ int, argv []string) {
			running = running || slices.Contains(argv, x.stack.file(Restart.script()))
		})
		if err != nil || !running {
			return err
		}
		select {
		case <-limited.Done():
			return fmt.Errorf("a restart does not end: %w", limited.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// processes calls see for each of the lab's.
func processes(see func(pid, parent int, argv []string)) error {
	pids, err := proc.Host.Pids()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		s, err := proc.Host.Stat(pid)
		if err != nil {
			continue // it has ended
		}
		if argv, err := proc.Host.Cmdline(pid); err == nil {
			see(pid, s.PPid, argv)
		}
	}
	return nil
}

// answers reports whether a server is there again, soon.
func answers(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return listens(limited, frontAddress, nil) == nil
}

// result has 1.5 s ÷ the longest wait as its score.
func (d KillDetails) result() bench.Result {
	res := bench.Result{Name: "reload --kills", Machine: bench.ThisMachine("HAProxy " + d.HAProxy), Details: d}
	longest := 0.0
	for _, r := range d.Runs {
		if r.Skipped != "" {
			continue
		}
		res.Rows = append(res.Rows, bench.NewRow("longest, "+r.Name()+" killed", "ms", []float64{r.Longest}))
		if r.Victim == KillNobody {
			continue // it is the machine's
		}
		res.Failed += r.Over
		longest = max(longest, r.Longest)
	}
	if longest > 0 {
		res.Score = patience / longest
	}
	res.Notes = append(res.Notes, fmt.Sprintf("the score is %.0f ms ÷ the longest that a client waited; failed are clients who waited longer", patience))
	return res
}

// WriteTable prints the table of runs; bench.Result uses it for its text.
func (d KillDetails) WriteTable(w io.Writer) error {
	return writeRuns(w, "kills\ttoo late\trequests\trefused\tlongest ms\tover 1.5 s", d.Runs)
}

// Name is the backend's and who is killed.
func (r *KillRun) Name() string { return string(r.Mode) + ", " + string(r.Victim) }

func (r *KillRun) skipped() string { return r.Skipped }

func (r *KillRun) cells() string {
	return fmt.Sprintf("%d\t%d\t%d\t%d\t%.1f\t%d", r.Kills, r.Missed, r.Requests, r.Refused, r.Longest, r.Over)
}
