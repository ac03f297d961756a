package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"holdfast"
)

// gatewayWork is one kind of load on the gateway.
type gatewayWork struct {
	name, about string
	unit        string // of its throughput
	pages, tls  bool   // server and transport
	measure     func(ctx context.Context, to echoURL, o GatewayOptions) (echoRun, error)
}

func gatewayWorks() []gatewayWork {
	const messages, requests = "msg/s", "req/s"
	return []gatewayWork{
		{"ws-64", "WebSockets, 64 B", messages, false, false, echoes(0, 64)},
		{"ws-16k", "WebSockets, 16 KiB", messages, false, false, echoes(0, 16<<10)},
		{"ws-one", "one WebSocket, 64 B", messages, false, false, echoes(1, 64)},
		{"wss-64", "WebSockets over TLS, 64 B", messages, false, true, secureEchoes(64)},
		{"http", "HTTP/1.1, 1 KiB", requests, true, false, pageRequests("--h1")},
		{"https", "HTTP/1.1 over TLS, 1 KiB", requests, true, true, pageRequests("--h1")},
		{"h2", "HTTP/2 over TLS, 1 KiB, 10 streams on each connection", requests, true, true, pageRequests("-m", "10")},
	}
}

// GatewayWorks returns the names of the works of Gateway.
func GatewayWorks() []string {
	var names []string
	for _, w := range gatewayWorks() {
		names = append(names, w.name)
	}
	return names
}

// echoes sends messages of size bytes on conns WebSockets; 0 is that of the options.
func echoes(conns, size int) func(context.Context, echoURL, GatewayOptions) (echoRun, error) {
	return func(ctx context.Context, to echoURL, o GatewayOptions) (echoRun, error) {
		if conns == 0 {
			conns = o.Conns
		}
		return echoLoad(ctx, to, conns, size, o.Duration)
	}
}

// secureEchoes is echoes over TLS, with a goroutine for each WebSocket.
func secureEchoes(size int) func(context.Context, echoURL, GatewayOptions) (echoRun, error) {
	return func(ctx context.Context, to echoURL, o GatewayOptions) (run echoRun, err error) {
		clients := make([]*tls.Conn, 0, o.Conns)
		defer func() {
			for _, c := range clients {
				c.Close()
			}
		}()
		for i := range o.Conns {
			c, err := (&tls.Dialer{Config: anyCertificate()}).DialContext(ctx, "tcp", to.address)
			if err != nil {
				return run, fmt.Errorf("client %d of %d: %w", i+1, o.Conns, err)
			}
			clients = append(clients, c.(*tls.Conn))
			if err := upgradeToWebSocket(c, to); err != nil {
				return run, fmt.Errorf("client %d of %d: %w", i+1, o.Conns, err)
			}
		}
		start := time.Now().Add(o.Duration / warmup)
		end := start.Add(o.Duration)
		runs := make([]echoRun, len(clients))
		var all sync.WaitGroup
		for i, c := range clients {
			all.Go(func() { runs[i] = secureClient(ctx, c, size, start, end) })
		}
		all.Wait()
		run.took = time.Since(start)
		for _, r := range runs {
			run.latency, run.broken = append(run.latency, r.latency...), run.broken+r.broken
		}
		if len(run.latency) == 0 {
			return run, errors.New("no message came back")
		}
		return run, ctx.Err()
	}
}

// secureClient has one message in flight until end, and counts those sent after start.
func secureClient(ctx context.Context, c *tls.Conn, size int, start, end time.Time) (run echoRun) {
	_ = c.SetDeadline(end.Add(echoTimeout)) // of an open connection
	frames := newLoadConn(-1, size)
	got := make([]byte, len(frames.want))
	in := bufio.NewReaderSize(c, len(got))
	for now := time.Now(); now.Before(end) && ctx.Err() == nil; {
		frames.number()
		_, err := c.Write(frames.frame)
		if err == nil {
			_, err = io.ReadFull(in, got)
		}
		if err != nil || !bytes.Equal(got, frames.want) {
			run.broken++
			return run
		}
		answered := time.Now()
		if now.After(start) {
			run.latency = append(run.latency, answered.Sub(now))
		}
		now = answered
	}
	return run
}

// pageRequests requests a page of 1 KiB with h2load.
func pageRequests(protocol ...string) func(context.Context, echoURL, GatewayOptions) (echoRun, error) {
	return func(ctx context.Context, to echoURL, o GatewayOptions) (run echoRun, err error) {
		log, err := os.CreateTemp("", "holdfast-bench-h2load-")
		if err != nil {
			return run, err
		}
		defer os.Remove(log.Name())
		defer log.Close()
		url := "http://" + to.address + to.path
		if to.tls {
			url = "https://" + to.address + to.path
		}
		args := append([]string{"-t", "1", "-c", strconv.Itoa(o.Conns), "-D", milliseconds(o.Duration),
			"--warm-up-time", milliseconds(o.Duration / warmup), "--log-file", log.Name()}, protocol...)
		out, err := exec.CommandContext(ctx, "h2load", append(args, url)...).CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) {
			return run, holdfast.WithHint(err, "make bench-tools installs h2load, the load of this bench")
		}
		if err != nil {
			return run, fmt.Errorf("h2load: %w: %s", err, bytes.TrimSpace(out))
		}
		return readLoad(log, o.Duration, string(out))
	}
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

// lost matches the requests without an answer in the summary of h2load.
var lost = regexp.MustCompile(`(\d+) errored, (\d+) timeout`)

// readLoad reads the log of h2load, of which each line has the start of a request, its
// status and its duration in µs, and its summary out.
func readLoad(log io.Reader, d time.Duration, out string) (run echoRun, err error) {
	run.took = d
	summary := lost.FindStringSubmatch(out)
	if summary == nil {
		return run, fmt.Errorf("h2load printed no summary: %s", strings.TrimSpace(out))
	}
	for _, n := range summary[1:] {
		errored, _ := strconv.Atoi(n) // digits
		run.broken += errored
	}
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 3 {
			return run, fmt.Errorf("h2load logged %q", lines.Text())
		}
		µs, err := strconv.Atoi(f[2])
		switch {
		case err != nil:
			return run, fmt.Errorf("h2load logged %q: %w", lines.Text(), err)
		case f[1] == "200":
			run.latency = append(run.latency, time.Duration(µs)*time.Microsecond)
		case f[1] != "0": // that of the requests in flight at the end
			run.broken++
		}
	}
	if len(run.latency) == 0 {
		return run, fmt.Errorf("no request was answered: %s", strings.TrimSpace(out))
	}
	return run, lines.Err()
}
