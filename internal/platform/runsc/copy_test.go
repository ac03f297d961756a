package runsc_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/runsc"
	"holdfast/test/poll"
)

// A container that is copied goes on with its connections. Each container that starts from
// the copy begins with its memory and files at that time, and none sees what another
// writes.
func TestCopy(t *testing.T) {
	s := newStage(t)
	const serve = `echo parent > /files; i=0
while :; do i=$((i+1)); echo "$i $(cat /files | tr '\n' ' ')"; sleep 0.05; done &
exec nc -ll -p 9000 -e cat`
	server := func(spec *engine.Spec) { spec.Command = []string{"sh", "-c", serve} }
	parent := s.create("parent", server)
	s.start(parent)
	s.said(parent, 5)
	c, err := s.engine.Inspect(s.ctx, parent)
	if err != nil || len(c.Addresses) != 1 {
		t.Fatalf("%v, %v", c.Addresses, err)
	}
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(c.Addresses[0], "9000"), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	echo := func(text string) {
		t.Helper()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(conn, text)
		if got, err := answers.ReadString('\n'); err != nil || got != text+"\n" {
			t.Fatalf("the connection answered %q, %v", got, err)
		}
	}
	echo("before")
	dir := filepath.Join(s.dir, "copy")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := s.runsc.Copy(s.ctx, parent, c.Pid, dir); err != nil {
		t.Fatal(err)
	}
	t.Log("copied in", time.Since(begun))
	echo("after")
	said := s.said(parent, 1)
	write := func(id, text string) {
		t.Helper()
		poll.Until(t, "the container runs commands again", func() bool {
			code, err := s.engine.Exec(s.ctx, id, engine.Exec{Command: []string{"sh", "-c", "echo " + text + " >> /files"}})
			return code == 0 && err == nil
		})
	}
	write(parent, "later") // the copies do not have it
	for _, name := range []string{"one", "two"} {
		id := s.create(name, server)
		image := filepath.Join(s.dir, "of-"+name)
		if err := runsc.Link(dir, image); err != nil {
			t.Fatal(err)
		}
		if err := s.runsc.Stage(id, image); err != nil {
			t.Fatal(err)
		}
		s.start(id)
		if err := s.runsc.Unstage(id); err != nil {
			t.Error(err)
		}
		var first int
		if _, err := fmt.Sscanf(s.said(id, 1)[0], "%d parent", &first); err != nil || first < 3 || first > len(said)+1 {
			t.Errorf("container %s begins with %q; its parent was at %q, %v", name, s.said(id, 1)[0], said[len(said)-1], err)
		}
		write(id, name)
		poll.Until(t, "it sees its own files", func() bool {
			lines := s.said(id, 1)
			return strings.HasSuffix(strings.TrimSpace(lines[len(lines)-1]), " parent "+name)
		})
	}
	echo("still")
}
