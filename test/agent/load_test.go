package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"
)

// atOnce is the maximum number of concurrent clients of a load, for machines that are too
// busy to serve more.
const atOnce = 600

// load is an open-loop load: it starts clients at a fixed rate, each with its own connection.
type load struct {
	name string
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex
	served int
	wrong  map[string]int // failures, by text
	slow   time.Duration  // the longest
}

// startLoad starts a load with an interval between clients. do runs one client, from its
// connect to the end of its answer.
func startLoad(name string, every time.Duration, do func(ctx context.Context, n int) error) *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{name: name, stop: stop, wrong: map[string]int{}}
	places := make(chan struct{}, atOnce)
	l.wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			select {
			case places <- struct{}{}:
			default:
				continue
			}
			l.wg.Go(func() {
				defer func() { <-places }()
				begun := time.Now()
				// The load serves all clients, including the last one.
				err := do(context.WithoutCancel(ctx), n)
				l.note(err, time.Since(begun))
			})
		}
	})
	return l
}

func (l *load) note(err error, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow = max(l.slow, took)
	switch {
	case err == nil:
		l.served++
	case errors.Is(err, syscall.ECONNREFUSED):
		l.wrong["refused"]++
	case errors.Is(err, syscall.ECONNRESET):
		l.wrong["reset"]++
	default:
		l.wrong[err.Error()]++
	}
}

// check ends the load. The test fails if a client was not served.
func (l *load) check(t *testing.T) {
	t.Helper()
	l.stop()
	l.wg.Wait()
	if len(l.wrong) > 0 || l.served == 0 {
		t.Errorf("%s: %d served, and not: %v", l.name, l.served, l.wrong)
	}
	t.Logf("%s: %d served, the longest took %v", l.name, l.served, l.slow)
}

// fetch sends a GET on a new connection. The answer must be complete and have the status.
func fetch(ctx context.Context, network, address, path string, status int) error {
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, address)
		},
	}}
	return ask(ctx, &client, "http://localhost"+path, status)
}

func ask(ctx context.Context, client *http.Client, url string, status int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != status {
		err = fmt.Errorf("%s: %.200s", res.Status, b)
	}
	return err
}
