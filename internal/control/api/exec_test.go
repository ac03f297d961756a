package api_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/internal/control/api/client"
)

// deaf runs a command that reads one byte of its input, and waits until ctx is done.
type deaf struct {
	*apitest.Backend
	begun, ended chan struct{}
}

func (b deaf) Parts() api.Parts {
	p := b.Backend.Parts()
	p.Commands = b
	return p
}

func (b deaf) Exec(ctx context.Context, _ holdfast.SessionKey, e api.Exec) (int, error) {
	if _, err := e.Stdin.Read(make([]byte, 1)); err != nil {
		return 0, err
	}
	close(b.begun)
	<-ctx.Done()
	close(b.ended)
	return 0, ctx.Err()
}

// The server notices that a client disconnects, even if the command leaves more input
// unread than the connection buffers.
func TestPingNoticesHangUp(t *testing.T) {
	b := deaf{&apitest.Backend{}, make(chan struct{}), make(chan struct{})}
	s := httptest.NewServer(api.NewPinging(b.Parts(), api.Options{Admin: true}, 5*time.Millisecond))
	defer s.Close()
	c, err := client.New(client.Options{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	left := make(chan error, 1)
	go func() {
		_, err := c.Exec(ctx, "alice", api.Exec{Command: []string{"deaf"}, Stdin: strings.NewReader(strings.Repeat("x", 16<<20))})
		left <- err
	}()
	<-b.begun
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	select {
	case <-b.ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the command still runs")
	}
}
