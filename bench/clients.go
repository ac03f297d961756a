package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/tasks"
)

// ClientsOptions configures `holdfast bench clients`. The zero value of a field selects
// its default.
type ClientsOptions struct {
	Clients int           // idle and slow clients at once; 10000
	Window  time.Duration // of one measurement of another client's requests; 2 s
	Rounds  int           // measurements without them, and with them; 3
	Only    []string      // kinds of clients, by name; all

	// Child is as in GatewayOptions. Child is required.
	Child    []string
	Progress io.Writer // may be nil
}

func (o *ClientsOptions) defaults() error {
	if o.Clients == 0 {
		o.Clients = 10000
	}
	if o.Window == 0 {
		o.Window = 2 * time.Second
	}
	if o.Rounds == 0 {
		o.Rounds = 3
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o.Check()
}

// Check reports invalid values. Defaults must be filled in before: a zero is invalid.
func (o ClientsOptions) Check() error {
	switch {
	case o.Clients < flooders || o.Clients > 20000:
		return fmt.Errorf("clients is %d, it must be %d to 20000", o.Clients, flooders)
	case o.Window <= 0 || o.Rounds < 1:
		return fmt.Errorf("window is %v and rounds is %d, both must be over 0", o.Window, o.Rounds)
	case len(o.Child) == 0:
		return errors.New("no command line for child processes")
	}
	for _, name := range o.Only {
		if !slices.ContainsFunc(clientKinds(), func(c clientKind) bool { return c.name == name }) {
			return fmt.Errorf("there are no clients of the kind %q", name)
		}
	}
	return nil
}

// spareFiles are open files of a process beside those of the clients.
const spareFiles = 200

// openFiles returns how many files a process of the bench may have open. Go has raised
// the limit as far as the host allows.
func openFiles() (int, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	return int(min(files.Cur, 1<<20)), nil
}

// ClientsRow has the figures of one kind of clients.
type ClientsRow struct {
	Name    string `json:"name"`
	Clients int    `json:"clients"`
	Memory  int64  `json:"memory"` // bytes of the gateway's resident memory for each client
	Without Row    `json:"without"`
	With    Row    `json:"with"` // of another client's requests, beside these clients
}

// ClientsTable is the Details of Clients.
type ClientsTable []ClientsRow

// WriteTable prints the figures as text.
func (t ClientsTable) WriteTable(w io.Writer) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "clients\tnumber\tKiB each\tp50 without\twith\tratio\tp99 without\twith\tratio\t")
	for _, r := range t {
		fmt.Fprintf(tab, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.Name, r.Clients, figure(float64(r.Memory)/1024),
			figure(r.Without.P50), figure(r.With.P50), figure(r.With.P50/r.Without.P50),
			figure(r.Without.P99), figure(r.With.P99), figure(r.With.P99/r.Without.P99))
	}
	return tab.Flush()
}

// Clients measures the requests of one client, alternately without and with thousands of
// idle, slow and hostile clients of the same gateway. The gateway, the server and those
// clients are separate processes. Score is the p99 without, divided by the
// p99 with the worst kind of clients.
func Clients(ctx context.Context, o ClientsOptions) (Result, error) {
	res := Result{Name: "clients", Machine: ThisMachine(""), Scale: "another client's p99 without, divided by that with the worst clients"}
	if err := o.defaults(); err != nil {
		return res, err
	}
	files, err := openFiles()
	if err != nil {
		return res, err
	}
	dir, err := os.MkdirTemp("", "holdfast-bench-clients-")
	if err != nil {
		return res, err
	}
	defer os.RemoveAll(dir)
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := writeCertificate(cert, key); err != nil {
		return res, err
	}
	pages, stop, err := startChild(ctx, o.Child, rolePages)
	if err != nil {
		return res, err
	}
	defer stop()
	var table ClientsTable
	for _, c := range clientKinds() {
		if len(o.Only) > 0 && !slices.Contains(o.Only, c.name) {
			continue
		}
		role := []string{roleGateway, pages}
		if c.tls {
			role = []string{roleSecure, pages, cert, key}
		}
		number := c.number(o.Clients)
		if most := (files - spareFiles) / max(1, c.files); number > most {
			number = most
			res.Notes = append(res.Notes, fmt.Sprintf("%s: the limit of %d open files allows %d clients", c.name, files, most))
		}
		row, failed, err := c.measure(ctx, o, number, role)
		if err != nil {
			return res, fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Fprintf(o.Progress, "%s: %d clients, %s KiB each, p50 %s and %s ms, p99 %s and %s ms\n", c.name, row.Clients, figure(float64(row.Memory)/1024),
			figure(row.Without.P50), figure(row.With.P50), figure(row.Without.P99), figure(row.With.P99))
		table = append(table, row)
		res.Rows = append(res.Rows, row.Without, row.With)
		res.Failed += failed
		if ratio := row.Without.P99 / row.With.P99; len(table) == 1 || ratio < res.Score {
			res.Score = ratio
		}
	}
	res.Details = table
	return res, nil
}

// measure is the experiment with one kind of clients.
func (c clientKind) measure(ctx context.Context, o ClientsOptions, number int, role []string) (row ClientsRow, failed int, err error) {
	address, pid, stop, err := startProcess(ctx, o.Child, role...)
	if err != nil {
		return row, 0, err
	}
	defer stop()
	row = ClientsRow{Name: c.name, Clients: number}
	other := newOther(address, c.tls)
	defer other.close()
	var samples [2][]float64 // without, with
	measure := func(which int) error {
		took, broken, err := other.requests(ctx, o.Window)
		samples[which] = append(samples[which], took...)
		failed += broken
		return err
	}
	if _, _, err := other.requests(ctx, o.Window/4); err != nil { // to warm up
		return row, failed, err
	}
	_, before, err := ProcessUsage(pid)
	if err != nil {
		return row, failed, err
	}
	for round := range o.Rounds {
		if err := measure(0); err != nil {
			return row, failed, err
		}
		_, end, err := startChild(ctx, o.Child, roleClients, c.name, address, strconv.Itoa(row.Clients))
		if err != nil {
			return row, failed, err
		}
		if c.share > 0 {
			err = awaitArrival(ctx, pid)
		}
		if err == nil {
			err = measure(1)
		}
		if err == nil && round == 0 {
			var after int64
			_, after, err = ProcessUsage(pid)
			row.Memory = (after - before) / int64(row.Clients)
		}
		end()
		if err != nil {
			return row, failed, err
		}
	}
	row.Without = NewRow(c.name+", without", "ms", samples[0])
	row.With = NewRow(c.name+", with", "ms", samples[1])
	return row, failed, nil
}

// awaitArrival waits until a process has handled the burst of its clients' arrival: until it
// uses less than a quarter of a CPU, for up to 30 s.
func awaitArrival(ctx context.Context, pid int) error {
	const step = 500 * time.Millisecond
	last, _, err := ProcessUsage(pid)
	for range 30 * time.Second / step {
		if err := tasks.Sleep(ctx, step); err != nil {
			return err
		}
		var used time.Duration
		if used, _, err = ProcessUsage(pid); err != nil || used-last < step/4 {
			return err
		}
		last = used
	}
	return err
}

// other is the client whose requests are measured.
type other struct {
	client *http.Client
	url    string
}

func newOther(address string, secure bool) *other {
	o := &other{&http.Client{Transport: &http.Transport{TLSClientConfig: anyCertificate()}, Timeout: echoTimeout}, "http://" + address + "/s/other/"}
	if secure {
		o.url = "https://" + address + "/s/other/"
	}
	return o
}

func (o *other) close() { o.client.CloseIdleConnections() }

// requests sends one request after another for d, and returns the milliseconds of each
// and the number of those that failed.
func (o *other) requests(ctx context.Context, d time.Duration) (took []float64, failed int, err error) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := ctx.Err(); err != nil {
			return took, failed, err
		}
		began := time.Now()
		if o.request() != nil {
			failed++
			continue
		}
		took = append(took, float64(time.Since(began))/float64(time.Millisecond))
	}
	if len(took) == 0 {
		return nil, failed, errors.New("no request of the other client was served")
	}
	return took, failed, nil
}

func (o *other) request() error {
	resp, err := o.client.Get(o.url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != pageText || resp.StatusCode != http.StatusOK {
		return errors.New("status " + strconv.Itoa(resp.StatusCode))
	}
	return nil
}
