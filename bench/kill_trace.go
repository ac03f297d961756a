package bench

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"holdfast/internal/sessions/kill"
)

// KillTrace are Result.Details of `holdfast bench kill --trace`: where the time of one
// `docker kill` goes.
type KillTrace struct {
	// Stages are times in ms since the command began, over the containers. The command has
	// at most 50 requests in progress (docker/cli, command/container/utils.go).
	Stages []Row `json:"stages"`
	// Spans are times in ms between two stages of the same container.
	Spans []Row `json:"spans"`
	// Waits are what the engine's goroutines that kill containers, or handle their exits, did
	// until the command ended: the most frequent first.
	Waits   []KillWait `json:"waits"`
	Samples int        `json:"samples"` // of the goroutines
}

// KillWait is one way in which goroutines of the engine waited.
type KillWait struct {
	Part  string  `json:"part"`  // "request" for the API's kill, "exit" for the engine's work after an exit
	State string  `json:"state"` // the Go runtime's: semacquire (a lock), IO wait, syscall, …
	In    string  `json:"in"`    // the innermost function outside the runtime and its libraries
	Mean  float64 `json:"mean"`  // goroutines at a time
	Max   int     `json:"max"`
}

// Names of the stages.
const (
	stageRequest  = "request received"
	stageDead     = "process dead"
	stageReleased = "address released"
	stageAnswered = "docker kill answered"

	spanDeath  = "request to death"
	spanAnswer = "death to answer"
)

// maxWaits is the number of rows of KillTrace.Waits.
const maxWaits = 12

// trace runs `docker kill` once with all containers, and observes the engine meanwhile.
func (x *killBench) trace(ctx context.Context) (Result, error) {
	path, err := exec.LookPath("docker")
	if err != nil {
		return Result{}, fmt.Errorf("the trace needs the command of the source: %w", err)
	}
	targets, err := x.started(ctx)
	defer closeAll(targets)
	if err != nil {
		return Result{}, err
	}
	log, err := os.Open(x.lab.LogFile())
	if err != nil {
		return Result{}, err
	}
	defer log.Close()
	if _, err := log.Seek(0, io.SeekEnd); err != nil {
		return Result{}, err
	}
	watchers, stop := context.WithCancel(ctx)
	defer stop()
	t := &tracer{begun: time.Now(), at: map[string]map[string]time.Time{}}
	var watching sync.WaitGroup
	watching.Go(func() { t.watchDeaths(watchers, targets) })
	watching.Go(func() { t.watchGoroutines(watchers, x.lab.Socket()) })
	err = t.run(x.dockerKill(ctx, path))
	stop()
	watching.Wait()
	if err != nil {
		return Result{}, err
	}
	alive, err := survivors(x.ids)
	if err != nil {
		return Result{}, err
	}
	if err := x.waitTidy(ctx); err != nil {
		return Result{}, err
	}
	if err := t.readLog(log); err != nil {
		return Result{}, err
	}
	info, err := x.engine.Info(ctx)
	if err != nil {
		return Result{}, err
	}
	d := t.details()
	death, answer := d.Spans[0].P50, d.Spans[1].P50
	return Result{
		Name: "kill --trace", Machine: EngineMachine(info), Rows: d.Stages, Failed: alive, Details: d,
		Score: (death + answer) / death, Scale: "from a request to its answer ÷ from the request to the death, by medians",
		Notes: append(x.notes, fmt.Sprintf("%d containers of %s; the engine logs at the level debug", x.o.N, x.o.Image)),
	}, errors.Join(t.errs...)
}

// tracer collects what happens during one docker kill.
type tracer struct {
	begun time.Time

	mu      sync.Mutex
	at      map[string]map[string]time.Time // stage → container, or any key → time
	waits   map[KillWait]*waitCount
	samples int
	errs    []error
}

type waitCount struct{ sum, most int }

func (t *tracer) add(stage, key string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at[stage] == nil {
		t.at[stage] = map[string]time.Time{}
	}
	t.at[stage][key] = at
}

// span returns the times of all containers from one stage to another.
func (t *tracer) span(name, from, to string) Row {
	var list []float64
	for id, at := range t.at[from] {
		if end, ok := t.at[to][id]; ok {
			list = append(list, millis(end.Sub(at)))
		}
	}
	return NewRow(name, "ms", list)
}

func (t *tracer) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errs = append(t.errs, err)
}

// run runs docker kill. It prints an id when the engine has answered for it.
func (t *tracer) run(cmd *exec.Cmd) error {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		t.add(stageAnswered, lines.Text(), time.Now())
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("docker kill: %w: %.200s", err, stderr.String())
	}
	return nil
}

// deathPoll is the interval of looks at the containers' processes.
const deathPoll = 2 * time.Millisecond

func (t *tracer) watchDeaths(ctx context.Context, targets []*kill.Target) {
	left := slices.Clone(targets)
	for tick := time.NewTicker(deathPoll); len(left) > 0; {
		select {
		case <-tick.C:
		case <-ctx.Done(): // the command has ended: the rest is counted as survivors
			return
		}
		left = slices.DeleteFunc(left, func(k *kill.Target) bool {
			if !k.Init().Exited() {
				return false
			}
			t.add(stageDead, k.ID, time.Now())
			return true
		})
	}
}

// goroutinePoll is the interval of dumps of the engine's goroutines. A dump of some thousand
// goroutines stops the engine for about 10 ms.
const goroutinePoll = 250 * time.Millisecond

// watchGoroutines reads the engine's goroutines by its debug interface (moby,
// api/server/router/debug), until ctx is done.
func (t *tracer) watchGoroutines(ctx context.Context, socket string) {
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	defer c.CloseIdleConnections()
	t.waits = map[KillWait]*waitCount{}
	for tick := time.NewTicker(goroutinePoll); ; {
		if err := t.dump(ctx, &c); err != nil && ctx.Err() == nil {
			t.fail(fmt.Errorf("read the engine's goroutines: %w", err))
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (t *tracer) dump(ctx context.Context, c *http.Client) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/debug/pprof/goroutine?debug=2", nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return err
	}
	counts := map[KillWait]int{}
	for _, one := range strings.Split(string(b), "\n\n") {
		if w, ok := waitOf(one); ok {
			counts[w]++
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.samples++
	for w, n := range counts {
		if t.waits[w] == nil {
			t.waits[w] = &waitCount{}
		}
		t.waits[w].sum += n
		t.waits[w].most = max(t.waits[w].most, n)
	}
	return nil
}

// goroutineHead is the first line of a goroutine in a dump of the Go runtime
// (runtime/traceback.go).
var goroutineHead = regexp.MustCompile(`^goroutine \d+ \[([^\],]+)[^\]]*\]:`)

// waitOf returns what a goroutine waits for, and false if it neither kills a container nor
// handles an exit.
func waitOf(dump string) (KillWait, bool) {
	head, frames, _ := strings.Cut(dump, "\n")
	m := goroutineHead.FindStringSubmatch(head)
	if m == nil {
		return KillWait{}, false
	}
	w := KillWait{State: m[1]}
	switch {
	case strings.Contains(frames, "handleContainerExit"), strings.Contains(frames, "(*Daemon).ProcessEvent"):
		w.Part = "exit"
	case strings.Contains(frames, "postContainersKill"), strings.Contains(frames, "(*State).Wait."):
		w.Part = "request"
	default:
		return KillWait{}, false
	}
	for line := range strings.Lines(frames) {
		if strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "created by ") {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimSpace(line), "(0x")
		name = strings.TrimSuffix(strings.TrimSuffix(name, "(...)"), "()")
		if i := strings.LastIndex(name, "({"); i > 0 {
			name = name[:i]
		}
		if !slices.ContainsFunc([]string{"runtime.", "sync.", "internal/", "syscall.", "golang.org/x/sys", "os."}, func(p string) bool { return strings.HasPrefix(name, p) }) {
			w.In = short(name)
			break
		}
	}
	return w, true
}

// short returns a function's name without the path of its module.
func short(name string) string {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		name = name[i+1:]
	}
	return name
}

// killLine matches the engine's log lines of a kill and of its end, at the level debug.
var killLine = regexp.MustCompile(`time="([^"]+)" .*msg="(?:Calling POST [^"]*/([0-9a-f]{64})/kill|(ReleaseAddress\([^"]*\)))`)

// readLog reads the engine's log lines since the command began.
func (t *tracer) readLog(log io.Reader) error {
	for lines := bufio.NewScanner(log); ; {
		if !lines.Scan() {
			return lines.Err()
		}
		m := killLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			return fmt.Errorf("the engine's log: %w", err)
		}
		if m[2] != "" {
			t.add(stageRequest, m[2], at)
		} else {
			t.add(stageReleased, m[3], at)
		}
	}
}

func (t *tracer) details() KillTrace {
	d := KillTrace{Samples: t.samples, Waits: []KillWait{}}
	for _, stage := range []string{stageRequest, stageDead, stageReleased, stageAnswered} {
		var list []float64
		for _, at := range t.at[stage] {
			list = append(list, millis(at.Sub(t.begun)))
		}
		d.Stages = append(d.Stages, NewRow(stage, "ms", list))
	}
	d.Spans = []Row{t.span(spanDeath, stageRequest, stageDead), t.span(spanAnswer, stageDead, stageAnswered)}
	for w, n := range t.waits {
		w.Mean, w.Max = float64(n.sum)/float64(max(t.samples, 1)), n.most
		d.Waits = append(d.Waits, w)
	}
	slices.SortFunc(d.Waits, func(a, b KillWait) int {
		return cmp.Or(cmp.Compare(b.Mean, a.Mean), cmp.Compare(a.In, b.In))
	})
	d.Waits = d.Waits[:min(len(d.Waits), maxWaits)]
	return d
}

// WriteTable prints the stages and the waits.
func (d KillTrace) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "since docker kill began\tn\tmin\tp50\tp99\tmax\tunit\t")
	for _, r := range slices.Concat(d.Stages, d.Spans) {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t\n", r.Name, r.N, figure(r.Min), figure(r.P50), figure(r.P99), figure(r.Max), r.Unit)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nthe engine's goroutines meanwhile, in %d samples:\n\n", d.Samples)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PART\tSTATE\tMEAN\tMAX\tIN")
	for _, r := range d.Waits {
		fmt.Fprintf(t, "%s\t%s\t%.1f\t%d\t%s\n", r.Part, r.State, r.Mean, r.Max, r.In)
	}
	return t.Flush()
}
