package fleet

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"holdfast/bench/rig"
	"holdfast/test/serve"
)

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	return serve.TCP(t, func(c net.Conn) { _, _ = io.Copy(c, c) })
}

type talker struct {
	t *testing.T
	c net.Conn
	r *bufio.Reader
}

func talkTo(t *testing.T, addr string) *talker {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &talker{t, c, bufio.NewReader(c)}
}

func (k *talker) say(s string) {
	k.t.Helper()
	if _, err := io.WriteString(k.c, s+"\n"); err != nil {
		k.t.Fatal(err)
	}
}

func (k *talker) hear(limit time.Duration) (string, error) {
	k.c.SetReadDeadline(time.Now().Add(limit))
	return k.r.ReadString('\n')
}

func TestLinkIsCutAndHealed(t *testing.T) {
	l, err := newLink("127.0.0.1", 0, []string{echo(t)})
	if err != nil {
		t.Fatal(err)
	}
	l.start()
	defer l.close()
	old := talkTo(t, l.endpoints()[0])
	old.say("a")
	if got, err := old.hear(rig.Patience); got != "a\n" {
		t.Fatalf("got %q, %v", got, err)
	}
	l.cut()
	l.cut() // twice is once
	fresh := talkTo(t, l.endpoints()[0])
	old.say("b")
	fresh.say("c")
	for _, k := range []*talker{old, fresh} {
		if got, err := k.hear(100 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("through a cut link came %q, %v", got, err)
		}
	}
	l.heal()
	l.heal()
	for k, want := range map[*talker]string{old: "b\n", fresh: "c\n"} {
		if got, err := k.hear(rig.Patience); got != want {
			t.Errorf("after healing: got %q, %v, want %q", got, err, want)
		}
	}
	l.cut()
	if err := l.close(); err != nil { // with the clients that wait for its end
		t.Error(err)
	}
	if _, err := old.hear(rig.Patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the end: %v", err)
	}
}

func TestLinkToNobody(t *testing.T) {
	target := echo(t)
	l, err := newLink("127.0.0.1", 0, []string{target})
	if err != nil {
		t.Fatal(err)
	}
	l.targets[0] = "127.0.0.1:1" // no process listens there
	l.start()
	defer l.close()
	k := talkTo(t, l.endpoints()[0])
	if _, err := k.hear(rig.Patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want the end", err)
	}
}
