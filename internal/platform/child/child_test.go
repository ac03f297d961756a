package child

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestMain is also the child: it answers each question with the same one, and ends
// on "end".
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		c, err := Adopt(SocketFD)
		if err != nil {
			os.Exit(1)
		}
		buf := make([]byte, 4096)
		for {
			n, err := c.Read(buf)
			var m message
			if err != nil || json.Unmarshal(buf[:n], &m) != nil || m.Text == "end" {
				os.Exit(0)
			}
			if m.Text == "silent" {
				continue
			}
			for _, text := range []string{"news", m.Text} {
				b, _ := json.Marshal(message{m.Seq, text})
				_, _ = c.Write(b)
			}
		}
	}
	goleak.VerifyTestMain(m)
}

type message struct {
	Seq  int
	Text string
}

func TestQuestionsAndAnswers(t *testing.T) {
	cmd := Command([]string{"/proc/self/exe", "child"}, "A=b")
	conn, err := Start(cmd, unix.SOCK_SEQPACKET, cmd.Start)
	if err != nil {
		t.Fatal(err)
	}
	news, ended := 0, false
	c := Talk(conn, 4096, Handlers[message]{
		Divert: func(m message) (reply, more bool) {
			if m.Text == "news" {
				news++
			}
			return m.Text != "news", true
		},
		End: func() { ended = true; conn.Close(); _ = cmd.Wait() },
	})
	ask := func(m message, limit time.Duration) (message, error) {
		if err := c.Send(m, nil, time.Second); err != nil {
			return message{}, err
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), limit, errors.New("late"))
		defer cancel()
		return c.Await(ctx, func(r message) bool { return r.Seq == m.Seq })
	}
	for i := range 3 {
		want := message{i, "hello"}
		if got, err := ask(want, time.Minute); err != nil || got != want {
			t.Errorf("the answer is %v, %v; want %v", got, err, want)
		}
	}
	if _, err := ask(message{7, "silent"}, 10*time.Millisecond); err == nil || err.Error() != "late" {
		t.Errorf("no answer in time: %v", err)
	}
	if err := c.Send(message{Text: strings.Repeat("x", 5000)}, nil, time.Second); err == nil {
		t.Error("a message over the limit was sent")
	}
	if _, err := ask(message{8, "end"}, time.Minute); !errors.Is(err, ErrGone) {
		t.Errorf("the child has ended: %v, want ErrGone", err)
	}
	<-c.Ended()
	if !ended || news != 3 {
		t.Errorf("End was called: %v; %d diverted messages, want 3", ended, news)
	}
}

// A reply that came before the deadline counts, although the reader runs after it, as in a
// process that was stopped.
func TestReplyReadAfterTheDeadline(t *testing.T) {
	for range 100 {
		c := &Conn[message]{replies: make(chan message, 1)}
		late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
		go func() { c.replies <- message{1, "in time"} }()
		if got, err := c.Await(late, func(message) bool { return true }); err != nil || got.Text != "in time" {
			t.Fatalf("%v, %v", got, err)
		}
		cancel()
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	c := &Conn[message]{replies: make(chan message)}
	if _, err := c.Await(cancelled, func(message) bool { return true }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestStartFails(t *testing.T) {
	cmd := Command([]string{"/does/not/exist"})
	if _, err := Start(cmd, unix.SOCK_STREAM, cmd.Start); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing program: %v", err)
	}
}
