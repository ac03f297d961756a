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

// atOnce bounds how many clients of a load there are at a time: a machine that is
// too busy to serve them gets no more.
const atOnce = 600

// load starts clients at a fixed rate, whatever becomes of those before
// them, each on a connection of its own.
type load struct {
	name string
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex
	served int
	wrong  map[string]int // what else happened, and how often
	slow   time.Duration  // the longest
}

// startLoad begins; every is between two clients. do is one of them, from its
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
				// All clients that have come are served, also after the last has.
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

// check ends the load, and fails the test unless all were served.
func (l *load) check(t *testing.T) {
	t.Helper()
	l.stop()
	l.wg.Wait()
	if len(l.wrong) > 0 || l.served == 0 {
		t.Errorf("%s: %d served, and not: %v", l.name, l.served, l.wrong)
	}
	t.Logf("%s: %d served, the longest took %v", l.name, l.served, l.slow)
}

// fetch is a GET on a connection of its own whose answer has to be whole, and of
// the status.
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
