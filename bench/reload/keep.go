package reload

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"holdfast/bench"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/proc"
)

const (
	// keepSpan is the length of each load on kept connections.
	keepSpan = 2 * time.Second
	// relayName is the name of a process that serves kept connections.
	relayName = "holdfast-relay"
)

// KeepRun is one load on the connections that the clients have from the beginning.
type KeepRun struct {
	Kind     string  `json:"kind"`
	Requests int     `json:"requests"`
	Failed   int     `json:"failed"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	// CPU is the CPU time of a request in microseconds, of clients, servers and relay;
	// Relay is the relay's part.
	CPU   float64 `json:"cpu_us"`
	Relay float64 `json:"relay_cpu_us"`

	waits []float64
}

// KeepDetails are Result.Details of the experiment with kept connections.
type KeepDetails struct {
	HAProxy     string     `json:"haproxy"`
	Connections int        `json:"connections"`
	Kept        int        `json:"kept"`
	Memory      float64    `json:"relay_memory_mib"` // resident
	Runs        []*KeepRun `json:"runs"`
}

// keepers are the clients' connections to the frontend.
type keepers struct {
	conns   []net.Conn
	readers []*bufio.Reader
}

func (k *keepers) close() {
	for _, c := range k.conns {
		c.Close()
	}
}

// measureKeep measures requests on the same connections before and after a restart by
// kill -9 that keeps them.
func (x *experiment) measureKeep(ctx context.Context) (bench.Result, error) {
	d := KeepDetails{Connections: x.o.Connections}
	var err error
	if d.HAProxy, err = x.stack.version(ctx); err != nil {
		return bench.Result{}, err
	}
	k := &keepers{}
	defer k.close()
	for range x.o.Connections {
		c, err := net.Dial("tcp", frontAddress.String())
		if err != nil {
			return bench.Result{}, err
		}
		k.conns, k.readers = append(k.conns, c), append(k.readers, bufio.NewReader(c))
	}
	direct, relayed := &KeepRun{Kind: "direct"}, &KeepRun{Kind: "relayed"}
	for range x.o.Pairs {
		if err := x.exchange(ctx, k, direct); err != nil {
			return bench.Result{}, err
		}
	}
	if d.Kept, err = x.keep(ctx); err != nil {
		return bench.Result{}, err
	}
	for range x.o.Pairs {
		if err := x.exchange(ctx, k, relayed); err != nil {
			return bench.Result{}, err
		}
	}
	if d.Memory, err = relayMemory(); err != nil {
		return bench.Result{}, err
	}
	for _, r := range []*KeepRun{direct, relayed} {
		r.P50, r.P99 = quantile(r.waits, 0.5), quantile(r.waits, 0.99)
		d.Runs = append(d.Runs, r)
	}
	return d.result(), nil
}

// keep restarts HAProxy and returns how many connections were kept.
func (x *experiment) keep(ctx context.Context) (int, error) {
	p := &protected{x: x, backend: "auto", run: &Run{}}
	out, err := x.stack.output(ctx, p.argv(Restart, "--keep", "idle", "--keep-for", "1h", "--", x.stack.file(Restart.script()))...)
	if err != nil {
		return 0, err
	}
	var report struct{ Kept struct{ Kept int } }
	if err := json.Unmarshal(out, &report); err != nil {
		return 0, fmt.Errorf("decode protect's report: %w", err)
	}
	return report.Kept.Kept, nil
}

// exchange sends one request after another on each connection for keepSpan.
func (x *experiment) exchange(ctx context.Context, k *keepers, r *KeepRun) error {
	pids, err := x.stack.pids()
	if err != nil {
		return err
	}
	relays, err := relays()
	if err != nil {
		return err
	}
	before, err := cpuTime(append(pids, relays...))
	if err != nil {
		return err
	}
	relayBefore, err := cpuTime(relays)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	requests := 0
	end := time.Now().Add(keepSpan)
	for i := range k.conns {
		all.Go(func() {
			var waits []float64
			failed := 0
			for time.Now().Before(end) && ctx.Err() == nil && failed == 0 {
				began := time.Now()
				if err := ping(k.conns[i], k.readers[i]); err != nil {
					failed++
				}
				waits = append(waits, time.Since(began).Seconds()*1000)
			}
			mu.Lock()
			defer mu.Unlock()
			r.waits, r.Failed = append(r.waits, waits...), r.Failed+failed
			requests += len(waits)
		})
	}
	all.Wait()
	after, err := cpuTime(append(pids, relays...))
	if err != nil {
		return err
	}
	relayAfter, err := cpuTime(relays)
	if err != nil || requests == 0 {
		return errors.Join(err, ctx.Err())
	}
	// The mean over all spans, weighted by their requests.
	share := float64(requests) / float64(r.Requests+requests)
	us := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(requests) }
	r.CPU += (us(after-before) - r.CPU) * share
	r.Relay += (us(relayAfter-relayBefore) - r.Relay) * share
	r.Requests += requests
	return nil
}

// ping sends one request and reads its answer.
func ping(c net.Conn, r *bufio.Reader) error {
	_ = c.SetDeadline(time.Now().Add(clientLimit))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: front\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	b, err := io.ReadAll(resp.Body)
	if err == nil && string(b) != pong {
		err = fmt.Errorf("the answer is %q", b)
	}
	return err
}

// relays returns the processes that serve kept connections, in this lab.
func relays() (pids []int, err error) {
	err = processes(func(pid, _ int, _ []string) {
		if s, err := proc.Host.Stat(pid); err == nil && s.Comm == relayName {
			pids = append(pids, pid)
		}
	})
	return pids, err
}

// relayMemory returns the resident memory of the relays in MiB.
func relayMemory() (float64, error) {
	pids, err := relays()
	if err != nil {
		return 0, err
	}
	kb := 0
	for _, pid := range pids {
		b, err := kfile.Read(fmt.Sprintf("/proc/%d/status", pid), 1<<16)
		if err != nil {
			continue // it has just ended
		}
		field, _ := proc.Field(b, "VmRSS")
		var n int
		if _, err := fmt.Sscan(strings.TrimSpace(field), &n); err == nil {
			kb += n
		}
	}
	return float64(kb) / 1024, nil
}

// result has direct ÷ relayed CPU time as its score.
func (d KeepDetails) result() bench.Result {
	res := bench.Result{Name: "reload --keep", Machine: bench.ThisMachine("HAProxy " + d.HAProxy), Details: d}
	for _, r := range d.Runs {
		res.Rows = append(res.Rows, bench.NewRow(r.Kind, "ms", r.waits))
		res.Failed += r.Failed
	}
	if r := d.Runs[1]; r.CPU > 0 {
		res.Score = d.Runs[0].CPU / r.CPU
	}
	res.Notes = append(res.Notes, fmt.Sprintf("%d of %d connections were kept; the relay has %.1f MiB; the score is the CPU time of a direct request ÷ that of a relayed one", d.Kept, d.Connections, d.Memory))
	return res
}

// WriteTable prints the table of runs; bench.Result uses it for its text.
func (d KeepDetails) WriteTable(w io.Writer) error {
	return writeRuns(w, "requests\tfailed\tp50 ms\tp99 ms\tCPU µs\tof the relay", d.Runs)
}

// Name is the kind of the load.
func (r *KeepRun) Name() string { return r.Kind }

func (r *KeepRun) skipped() string { return "" }

func (r *KeepRun) cells() string {
	return fmt.Sprintf("%d\t%d\t%.2f\t%.2f\t%.0f\t%.0f", r.Requests, r.Failed, r.P50, r.P99, r.CPU, r.Relay)
}
