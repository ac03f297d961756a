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
	"holdfast/internal/platform/tasks"
)

// Victim names the processes that are killed during a protect.
type Victim string

// The victims: one or several processes of a protect. KillNone measures the clients'
// wait without a kill.
const (
	KillNone     Victim = "nobody"
	KillProtect  Victim = "protect"
	KillKeeper   Victim = "keeper"
	KillCommand  Victim = "command"
	KillBoth     Victim = "command and protect"
	KillAll      Victim = "keeper and protect"
	KillStanding Victim = "standing keeper"
)

func allVictims() []Victim {
	return []Victim{KillNone, KillProtect, KillKeeper, KillCommand, KillBoth, KillAll, KillStanding}
}

const (
	// defaultKills is how many of each victim are killed, one after the other
	// this much later in the protect.
	defaultKills = 15
	killStep     = 8 * time.Millisecond
	// killRate is the maximum number of clients per second. The bench looks for
	// waits, not for the machine's limit.
	killRate = 200.0
	// patience is the limit of a client's wait when a process is killed. A SYN that
	// is lost with its queue is sent again after 1 s (RFC 6298).
	patience = 1500.0 // ms
	// pause between two kills, in which clients that lost a SYN send it again.
	betweenKills = 1200 * time.Millisecond
)

// KillRun has the clients' waits while one kind of victim was killed repeatedly, each
// time a bit later in the protect.
type KillRun struct {
	Mode    Mode   `json:"mode"`
	Victim  Victim `json:"victim"`
	Skipped string `json:"skipped,omitempty"`

	Kills    int `json:"kills"`
	Missed   int `json:"missed"` // kills that came after the end of the protect
	Requests int `json:"requests"`
	// Refused counts clients without an answer. They do not count as failed, because
	// after a killed restart no server may run. Only the waits count.
	Refused int     `json:"refused"`
	Longest float64 `json:"longest"` // ms, of all clients
	Over    int     `json:"over"`    // clients that waited longer than 1.5 s
}

// KillDetails are Result.Details of the experiment with kills.
type KillDetails struct {
	HAProxy string     `json:"haproxy"`
	Rate    float64    `json:"rate"` // clients per second
	Runs    []*KillRun `json:"runs"`
}

// measureKills kills the processes of a protected restart at every moment of it, under
// a load.
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

// killRun runs the load while one victim after the other is killed.
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

// kills runs one restart after the other and kills its victim, each time a bit later.
// After each restart it waits for a server that listens.
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
		// A server that a killed restart has told to end may listen until then.
		if tasks.Sleep(ctx, betweenKills) != nil {
			return nil
		}
		if !answers(ctx) {
			if err := errors.Join(x.stack.killProxies(), x.stack.startHAProxy(ctx)); err != nil {
				return err
			}
		}
	}
	if r.Victim == KillStanding {
		return p.uninstall(ctx)
	}
	return nil
}

// killOne protects a restart and kills the victim that long after its start.
func (x *experiment) killOne(ctx context.Context, p *protected, r *KillRun, after time.Duration) error {
	argv := p.argv(Restart, "--", x.stack.file(Restart.script()))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if err := cmd.Start(); err != nil {
		return err
	}
	over := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the victims may include it
		close(over)
	}()
	if r.Victim == KillNone {
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
			_ = unix.Kill(pid, unix.SIGKILL) // an error means that it has exited already
		}
		r.Kills++
	}
	<-over
	return x.awaitCommand(ctx)
}

// victims waits until the processes to kill exist. It returns none if the protect is over.
func (x *experiment) victims(protect int, v Victim, over <-chan struct{}) ([]int, error) {
	for {
		keeper, command, err := x.children(protect)
		if err != nil {
			return nil, err
		}
		var pids []int
		switch v {
		case KillProtect:
			pids = []int{protect}
		case KillKeeper:
			pids = []int{keeper}
		case KillCommand:
			pids = []int{command}
		case KillBoth:
			pids = []int{command, protect}
		case KillAll:
			pids = []int{keeper, protect}
		case KillStanding:
			if pids, err = x.standing(); err != nil {
				return nil, err
			}
		}
		if len(pids) > 0 && !slices.Contains(pids, 0) {
			return pids, nil
		}
		select {
		case <-over:
			return nil, nil
		case <-time.After(time.Millisecond):
		}
	}
}

// children returns the child processes of a protect, 0 for one that does not exist.
func (x *experiment) children(protect int) (keeper, command int, err error) {
	err = processes(func(pid, parent int, argv []string) {
		switch {
		case parent != protect:
		case slices.Contains(argv, x.stack.file(Restart.script())):
			command = pid
		case len(argv) > 0 && !slices.Contains(argv, "--"): // the child has not called exec yet
			keeper = pid
		}
	})
	return keeper, command, err
}

// standing returns the standby keepers in this lab.
func (x *experiment) standing() (pids []int, err error) {
	err = processes(func(pid, _ int, argv []string) {
		if len(argv) > 2 && argv[len(argv)-2] == "standing" && strings.HasSuffix(argv[len(argv)-1], ".sock") {
			pids = append(pids, pid)
		}
	})
	return pids, err
}

// awaitCommand waits until every restart has ended whose protect was killed.
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
		if tasks.Sleep(limited, time.Millisecond) != nil {
			return fmt.Errorf("a restart does not end: %w", limited.Err())
		}
	}
}

// processes calls see for each process of the lab.
func processes(see func(pid, parent int, argv []string)) error {
	pids, err := proc.Host.Pids()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		s, err := proc.Host.Stat(pid)
		if err != nil {
			continue // the process has exited
		}
		if argv, err := proc.Host.Cmdline(pid); err == nil {
			see(pid, s.PPid, argv)
		}
	}
	return nil
}

// answers reports whether a server accepts connections again within a short time.
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
		if r.Victim == KillNone {
			continue // the machine stood still, which is not the protect's fault
		}
		res.Failed += r.Over
		longest = max(longest, r.Longest)
	}
	if longest > 0 {
		res.Score = patience / longest
	}
	res.Notes = append(res.Notes, fmt.Sprintf("the score is %.0f ms ÷ the longest wait of a client; failed counts the clients that waited longer", patience))
	return res
}

// WriteTable prints the table of runs; bench.Result uses it for its text.
func (d KillDetails) WriteTable(w io.Writer) error {
	return writeRuns(w, "kills\ttoo late\trequests\trefused\tlongest ms\tover 1.5 s", d.Runs)
}

// Name is the backend's name and the victim's.
func (r *KillRun) Name() string { return string(r.Mode) + ", " + string(r.Victim) }

func (r *KillRun) skipped() string { return r.Skipped }

func (r *KillRun) cells() string {
	return fmt.Sprintf("%d\t%d\t%d\t%d\t%.1f\t%d", r.Kills, r.Missed, r.Requests, r.Refused, r.Longest, r.Over)
}
