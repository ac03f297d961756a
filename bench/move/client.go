package move

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"holdfast"
)

// clientTime limits the wait of a client for one answer.
const clientTime = 3 * time.Minute

// line is a line of output, with the time at which the client received it.
type line struct {
	text string
	at   time.Time
}

// terminal is a client: one WebSocket to one session's shell.
type terminal struct {
	key     holdfast.SessionKey
	gateway string // host:port
	ws      *websocket.Conn
	secret  string // what the shell's variable holds
	ended   chan struct{}

	mu    sync.Mutex
	lines []line
	more  chan struct{} // closed when a line or an error arrives
	err   error         // of the socket's end
	last  int           // last number of the counter
	gaps  int           // numbers that the client did not receive
}

// connect opens the session's shell, which boots the session if it does not run. It
// returns the time until the first line.
func connect(ctx context.Context, gateway string, key holdfast.SessionKey) (*terminal, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, clientTime)
	defer cancel()
	begun := time.Now()
	ws, _, err := websocket.Dial(ctx, fmt.Sprintf("ws://%s/s/%s/ws", gateway, key), nil)
	if err != nil {
		return nil, 0, fmt.Errorf("connect to session %s: %w", key, err)
	}
	t := &terminal{key: key, gateway: gateway, ws: ws, secret: strconv.FormatUint(rand.Uint64(), 36), ended: make(chan struct{}), more: make(chan struct{})}
	go t.read()
	first, err := t.await(ctx, 0, func(string) bool { return true })
	if err != nil {
		t.close()
		return nil, 0, err
	}
	return t, first.at.Sub(begun), nil
}

func (t *terminal) close() {
	t.ws.CloseNow()
	<-t.ended
}

func (t *terminal) read() {
	defer close(t.ended)
	for {
		_, text, err := t.ws.Read(context.Background()) // close ends it
		t.mu.Lock()
		if err != nil {
			t.err = err
		} else {
			t.lines = append(t.lines, line{string(text), time.Now()})
			t.count(string(text))
		}
		close(t.more)
		t.more = make(chan struct{})
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// count follows the counter. It ignores lines that the server sends again on a new
// connection.
func (t *terminal) count(text string) {
	number, ok := strings.CutPrefix(text, counter)
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n <= t.last {
		return
	}
	if t.last > 0 { // otherwise this client has not seen the first number
		t.gaps += n - t.last - 1
	}
	t.last = n
}

// await returns the first matching line from number n on.
func (t *terminal) await(ctx context.Context, n int, ok func(string) bool) (line, error) {
	for {
		t.mu.Lock()
		for ; n < len(t.lines); n++ {
			if l := t.lines[n]; ok(l.text) {
				t.mu.Unlock()
				return l, nil
			}
		}
		more, err := t.more, t.err
		t.mu.Unlock()
		if err != nil {
			return line{}, fmt.Errorf("session %s: %w: %w", t.key, errSocket, err)
		}
		select {
		case <-more:
		case <-ctx.Done():
			return line{}, fmt.Errorf("session %s: %w: nothing was said on it: %w", t.key, errSocket, ctx.Err())
		}
	}
}

// seen returns the number of lines received.
func (t *terminal) seen() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.lines)
}

func (t *terminal) say(ctx context.Context, text string) error {
	if err := t.ws.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		return fmt.Errorf("session %s: %w: %w", t.key, errSocket, err)
	}
	return nil
}

const counter = "n "

// begin sets the variable and starts a counter with an interval in seconds.
func (t *terminal) begin(ctx context.Context, every string) error {
	n := t.seen()
	if err := t.say(ctx, fmt.Sprintf("secret=%s; (i=0; while :; do i=$((i+1)); echo \"%s$i\"; sleep %s; done) &", t.secret, counter, every)); err != nil {
		return err
	}
	_, err := t.await(ctx, n, func(s string) bool { return strings.HasPrefix(s, counter) })
	return err
}

// Failures of a move.
var (
	errLost   = errors.New("its memory is lost")
	errSocket = errors.New("its socket is broken")
)

// check reads the shell's variable, and waits until the counter continues. It returns
// the time of the shell's answer.
func (t *terminal) check(ctx context.Context, n int) (time.Time, error) {
	const asked = "secret is "
	if err := t.say(ctx, "echo \""+asked+"$secret\""); err != nil {
		return time.Time{}, err
	}
	answer, err := t.await(ctx, n, func(s string) bool { return strings.HasPrefix(s, asked) })
	if err != nil {
		return time.Time{}, err
	}
	if answer.text != asked+t.secret {
		return answer.at, fmt.Errorf("session %s: the variable is %q and not %q: %w", t.key, strings.TrimPrefix(answer.text, asked), t.secret, errLost)
	}
	if err := t.counts(ctx, n); err != nil {
		return answer.at, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gaps > 0 {
		return answer.at, fmt.Errorf("session %s: the counter has left out %d numbers: %w", t.key, t.gaps, errLost)
	}
	return answer.at, nil
}

// counts waits for the counter's next number. A new client has no last number when the first
// line that the server sends again is an earlier answer.
func (t *terminal) counts(ctx context.Context, n int) error {
	isNumber := func(s string) bool { return strings.HasPrefix(s, counter) }
	if _, err := t.await(ctx, n, isNumber); err != nil {
		return fmt.Errorf("session %s: the counter does not go on: %w", t.key, errors.Join(err, errLost))
	}
	t.mu.Lock()
	last := t.last
	t.mu.Unlock()
	if _, err := t.await(ctx, n, func(s string) bool { return s == counter+strconv.Itoa(last+1) }); err != nil {
		return fmt.Errorf("session %s: the counter does not go on at %d: %w", t.key, last+1, errors.Join(err, errLost))
	}
	return nil
}

// whole asks the server whether its memory is unchanged.
func (t *terminal) whole(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clientTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/s/%s/sum", t.gateway, t.key), nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		return fmt.Errorf("session %s: what it holds is not what it was (%s): %w", t.key, res.Status, errLost)
	}
	return nil
}
