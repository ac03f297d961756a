package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"holdfast"
	"holdfast/internal/engine"
)

// Polling of a container that is not ready: from a millisecond on, then a tenth
// of the time waited, so that polling adds at most a tenth to a boot and a slow
// starter is not asked thousands of times.
const (
	firstPoll   = time.Millisecond
	longestPoll = 250 * time.Millisecond
	probeLimit  = 2 * time.Second // for one answer
)

// errDied is returned when the container's init is dead.
var errDied = errors.New("the container ended")

// address is where a container's server is reached from this host.
func address(c engine.Container, t Template) (string, error) {
	host := "127.0.0.1"
	if t.Network != "host" {
		if len(c.Addresses) == 0 {
			return "", holdfast.WithHint(errors.New("the container has no address"), "check the template's network")
		}
		host = c.Addresses[0]
	}
	return net.JoinHostPort(host, strconv.Itoa(t.Port)), nil
}

// awaitReady returns when the server at addr answers as r asks for. The error
// says what was wrong the last time it was asked.
func awaitReady(ctx context.Context, addr string, r Readiness, alive func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	start := time.Now()
	probe := connectProbe(addr)
	if r.HTTPPath != "" {
		client := &http.Client{
			Transport:     &http.Transport{DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
		probe = httpProbe(client, "http://"+addr+r.HTTPPath)
	}
	var last error
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // and not that the time was up in the middle of the next
		}
		if !alive() {
			return errDied
		}
		pause := min(max(firstPoll, time.Since(start)/10), longestPoll)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return holdfast.WithHint(fmt.Errorf("not ready after %v: %w", time.Since(start).Round(time.Millisecond), last),
				"check the template's port and readiness, or give ready.timeout more time")
		}
	}
}

func connectProbe(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		d := net.Dialer{Timeout: probeLimit}
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

func httpProbe(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, probeLimit)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode >= 400 {
			return fmt.Errorf("GET %s: %s", url, res.Status)
		}
		return nil
	}
}
