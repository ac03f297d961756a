package deadman

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
	"holdfast/test/poll"
)

// A deadman that dies or hangs is replaced by one that gets all containers.
func TestDeadmanIsOutOfAction(t *testing.T) {
	for name, sig := range map[string]unix.Signal{"killed": unix.SIGKILL, "stopped": unix.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, b, late, gone := newClient(t, runDir(t)), newBox(t, newID()), newID(), newBox(t, newID())
			c.Extend(soon(time.Hour))
			hold(t, c, b)
			hold(t, c, gone)
			if err := c.Expect(late); err != nil {
				t.Fatal(err)
			}
			c.Forget(gone.ID)
			old := c.Pid()
			if err := unix.Kill(old, sig); err != nil {
				t.Fatal(err)
			}
			poll.Until(t, "another one stands by", func() bool {
				c.Extend(soon(time.Hour)) // as renewals do; a missing reply shows that the deadman hangs
				p := c.Pid()
				return p != 0 && p != old
			})
			if s, err := proc.Host.Stat(old); err == nil && s.State != 'Z' {
				t.Errorf("the old one is in state %c", s.State)
			}
			deadline := soon(0)
			c.Extend(deadline)
			b.diedNotBefore(t, deadline)
			newBox(t, late).diedNotBefore(t, deadline)
			if !gone.alive() {
				t.Error("a forgotten container is dead")
			}
		})
	}
}

// An agent that attaches to a stopped deadman learns its containers and its deadline,
// which only that deadman knows.
func TestStoppedDeadmanIsWoken(t *testing.T) {
	dir, b, late := runDir(t), newBox(t, newID()), newID()
	first := newAgent(t, dir)
	first.must(order{Extend: soon(time.Hour)})
	first.must(order{Hold: b.container})
	first.must(order{Expect: late})
	if err := unix.Kill(first.deadman, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	first.kill()
	c := start(t, argv(), dir, t.Output())
	if c.Pid() != first.deadman {
		t.Errorf("deadman %d instead of %d", c.Pid(), first.deadman)
	}
	if unconfirmed := c.Unconfirmed(); !slices.Contains(unconfirmed, b.ID) || !slices.Contains(unconfirmed, late) {
		t.Errorf("its containers are not known: %v", unconfirmed)
	}
	if !b.alive() {
		t.Error("the container is dead")
	}
}

// An agent of another version takes over all containers and the deadline.
func TestOtherVersionIsReplaced(t *testing.T) {
	dir, b, late := runDir(t), newBox(t, newID()), newID()
	past := start(t, []string{"/proc/self/exe", "other-version"}, dir, t.Output())
	deadline := soon(3 * time.Second)
	past.Extend(deadline)
	hold(t, past, b)
	if err := past.Expect(late); err != nil {
		t.Fatal(err)
	}
	for i := range 2 * batch { // more than fit into one list reply
		id := newID()
		if err := past.Expect(id); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	process, err := pidfd.Open(past.Pid())
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	past.Close()
	c := start(t, argv(), dir, t.Output())
	poll.Until(t, "the old one has ended", process.Exited)
	if n := len(c.kept); n != 2*batch+2 {
		t.Errorf("%d containers were moved", n)
	}
	b.diedNotBefore(t, deadline) // which no agent has sent to the new deadman
	newBox(t, late).diedNotBefore(t, deadline)
	c.Forget(c.Unconfirmed()...)
	// The deadman sees a container dead a little later than the test.
	poll.Until(t, "the deadman stands down", func() bool { return c.StandDown() == nil })
}

// The agent of another node is refused as long as there are containers. The agent of
// their node finds them unchanged.
func TestOtherNode(t *testing.T) {
	dir, b := runDir(t), newBox(t, newID())
	first := newAgent(t, dir)
	first.must(order{Extend: soon(time.Hour)})
	first.must(order{Hold: b.container})
	other := func() (*Client, error) {
		return Start(argv(), dir, "n2", slog.New(slog.NewTextHandler(t.Output(), nil)))
	}
	if c, err := other(); !errors.Is(err, ErrOtherNode) || !strings.Contains(err.Error(), string(testNode)) {
		t.Errorf("while the agent runs: %v, %v", c, err)
	}
	first.must(order{Expect: newID()}) // it still controls the deadman
	first.kill()
	if c, err := other(); !errors.Is(err, ErrOtherNode) {
		t.Errorf("%v, %v", c, err)
	}
	c := start(t, argv(), dir, t.Output())
	if unconfirmed := c.Unconfirmed(); c.Pid() != first.deadman || !slices.Contains(unconfirmed, b.ID) || !b.alive() {
		t.Errorf("deadman %d instead of %d, unconfirmed %v", c.Pid(), first.deadman, unconfirmed)
	}
	c.Forget(c.Unconfirmed()...)
	c.Close()
	next, err := other()
	if err != nil {
		t.Fatalf("without containers: %v", err)
	}
	next.Close()
}

// Of two agents on one directory the newer controls.
func TestSecondAgent(t *testing.T) {
	dir, b := runDir(t), newBox(t, newID())
	first := start(t, argv(), dir, t.Output())
	ended := run(t, first)
	first.Extend(soon(time.Hour))
	hold(t, first, b)
	second := newClient(t, dir)
	if err := <-ended; !errors.Is(err, ErrSuperseded) {
		t.Errorf("the first one goes on: %v", err)
	}
	if err := first.Expect(newID()); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the first one may still start containers: %v", err)
	}
	first.Extend(soon(0))
	hold(t, second, b)
	if !b.alive() {
		t.Error("the first one could still kill")
	}
}

// The next agent gets the report of what was killed, and the deadman goes on.
func TestNextAgentHearsOfIt(t *testing.T) {
	dir, b := runDir(t), newBox(t, newID())
	first := newAgent(t, dir)
	first.must(order{Extend: soon(time.Hour)})
	first.must(order{Hold: b.container})
	first.must(order{Extend: soon(0)})
	<-b.died
	first.kill()
	var log bytes.Buffer
	c := start(t, argv(), dir, &log)
	if c.Pid() != first.deadman {
		t.Error("it is another one")
	}
	if err := c.Expect(newID()); !errors.Is(err, ErrOverdue) {
		t.Errorf("a container may start after the deadline: %v", err)
	}
	if !strings.Contains(log.String(), "the deadman killed containers") {
		t.Errorf("the log does not tell:\n%s", &log)
	}
	poll.Until(t, "it has reported everything", func() bool {
		c.Extend(soon(time.Hour))
		_ = c.Expect(b.ID) // sends the deadline
		return strings.Contains(log.String(), b.Name)
	})
	c.Forget(b.ID)
	told := strings.Count(log.String(), "the deadman killed containers")
	next := newBox(t, newID())
	if err := c.Expect(next.ID); err != nil {
		t.Errorf("the new deadline has no effect: %v", err)
	}
	hold(t, c, next)
	deadline := soon(0)
	c.Extend(deadline)
	_ = c.Expect(newID()) // sends the deadline
	next.diedNotBefore(t, deadline)
	if n := strings.Count(log.String(), b.Name); n != 1 || told > 2 {
		t.Errorf("the kill was reported %d and %d times:\n%s", told, n, &log)
	}
}

// The machine was paused beyond the deadline, and the extension was sent in time: it
// is handled first.
func TestExtensionComesBeforeTheDeadline(t *testing.T) {
	dir, b := runDir(t), newBox(t, newID())
	c := start(t, argv(), dir, t.Output())
	deadline := soon(time.Second) // well under answerLimit
	c.Extend(deadline)
	hold(t, c, b)
	pid := c.Pid()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	l := c.link
	answered := make(chan error, 1)
	go func() { _, err := l.do(request{Op: opExtend, Deadline: soon(time.Hour)}); answered <- err }()
	waitUntil(deadline)
	time.Sleep(50 * time.Millisecond)
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	<-answered // in time or not
	if _, err := l.do(request{Op: opList}); err != nil {
		t.Fatal(err)
	}
	if !b.alive() {
		t.Error("it was killed by the old deadline")
	}
}

// A host that shuts down sends SIGTERM to all processes. A deadman without living
// containers exits at once; others exit after the deadline.
func TestHostShutsDown(t *testing.T) {
	dir, b := runDir(t), newBox(t, newID())
	c := start(t, argv(), dir, t.Output())
	c.Extend(soon(time.Hour))
	hold(t, c, b)
	process, err := pidfd.Open(c.Pid())
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE, unix.SIGTERM} {
		if err := process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Expect(newID()); err != nil || !b.alive() {
		t.Fatalf("it did not survive: %v", err)
	}
	c.Extend(soon(0))
	_ = c.Expect(newID()) // sends the deadline
	<-b.died
	poll.Until(t, "it has ended", process.Exited)
}

func TestStaysAsLongAsItIsNeeded(t *testing.T) {
	past, agent := soon(-idleLimit-time.Second), 5
	for name, c := range map[string]struct {
		s    *server
		want bool
	}{
		"no agent, nothing":         {&server{controller: -1, alone: past}, true},
		"only just alone":           {&server{controller: -1, alone: soon(0)}, false},
		"an agent":                  {&server{controller: agent, alone: past}, false},
		"something to report":       {&server{controller: -1, alone: past, firing: firing{fired: &Fired{}}}, false},
		"holds":                     {&server{controller: -1, alone: past, held: map[string]*held{"a": nil}}, false},
		"expects":                   {&server{controller: -1, alone: past, expected: map[string]container{"a": {}}}, false},
		"the directory was removed": {&server{controller: -1, alone: soon(0), lost: true}, true},
		"the directory was removed, and it holds": {&server{controller: -1, alone: past, lost: true, held: map[string]*held{"a": nil}}, false},
		"SIGTERM":            {leavingServer(&server{controller: agent}), true},
		"SIGTERM, and holds": {leavingServer(&server{controller: agent, held: map[string]*held{"a": nil}}), false},
		"the engine never started it": {&server{
			controller: -1, deadline: past, expected: map[string]container{"a": {}},
			firing: firing{since: soon(-unreportedLimit), searched: true},
		}, true},
		"the engine might still start it": {&server{
			controller: -1, deadline: past, expected: map[string]container{"a": {}},
			firing: firing{since: past, searched: true},
		}, false},
		"stood down": {&server{controller: agent, ended: true}, true},
	} {
		if got := c.s.mayEnd(); got != c.want {
			t.Errorf("%s: may end is %v", name, got)
		}
	}
}

func leavingServer(s *server) *server {
	s.leaving.Store(true)
	return s
}

// Requests that no agent sends end the connection or are refused, without an effect
// on the agent that controls.
func TestBadMessages(t *testing.T) {
	dir := runDir(t)
	c := newClient(t, dir)
	c.Extend(soon(time.Hour))
	names, err := sockets(dir)
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	for name, message := range map[string]string{
		"no JSON":          "hello",
		"no hello":         `{"op":"extend","seq":1,"deadline":1}`,
		"too long":         `{"op":"` + strings.Repeat("x", maxMessage) + `"}`,
		"an empty message": "",
	} {
		l, err := dial(dir, names[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.conn.Write([]byte(message)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case <-l.conn.Ended():
		case <-time.After(time.Minute):
			t.Errorf("%s: the connection lasts", name)
		}
		l.close()
	}
	for name, r := range map[string]request{
		"unknown":        {Op: "dance"},
		"no container":   {Op: opHold},
		"a slice":        {Op: opExpect, Container: &container{ID: "system.slice"}},
		"a short id":     {Op: opExpect, Container: &container{ID: "abc"}},
		"everything":     {Op: opExpect, Container: &container{}},
		"a long id":      {Op: opExpect, Container: &container{ID: strings.Repeat("a", maxIDLen+1)}},
		"a long name":    {Op: opHold, Container: &container{ID: newID(), Name: strings.Repeat("a", 256), Pid: 2, Start: 1}},
		"an odd name":    {Op: opHold, Container: &container{ID: newID(), Name: "a\x00", Pid: 2, Start: 1}},
		"init":           {Op: opHold, Container: &container{ID: newID(), Pid: 1, Start: 1}},
		"no start":       {Op: opHold, Container: &container{ID: newID(), Pid: 2}},
		"a stranger":     {Op: opHold, Container: &container{ID: newID(), Pid: os.Getpid(), Start: ourStart(t)}},
		"no deadline":    {Op: opExtend},
		"before 0":       {Op: opList, From: -1},
		"too many ids":   {Op: opForget, IDs: make([]string, batch+1)},
		"ids of a novel": {Op: opForget, IDs: []string{strings.Repeat("a", maxIDLen+1)}},
	} {
		if _, err := ask(c, r); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if err := c.Expect(newID()); err != nil {
		t.Errorf("the agent that controls: %v", err)
	}
}

// ask calls Client.do of a running client.
func ask(c *Client, r request) (reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.do(r)
}

func ourStart(t *testing.T) uint64 {
	t.Helper()
	s, err := proc.Host.Stat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return s.Start
}

// The deadman refuses another user, even if the socket's mode would let that user
// connect.
func TestStranger(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test becomes another user, which takes root")
	}
	dir := runDir(t)
	c := newClient(t, dir)
	names, err := sockets(dir)
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	socket := filepath.Join(dir, names[0])
	st, err := os.Stat(socket)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("/proc/self/exe", "stranger", dir, names[0]).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	c.Extend(soon(time.Hour))
	if err := c.Expect(newID()); err != nil {
		t.Errorf("the agent that controls: %v", err)
	}
}

// If no deadman starts, there is no client, and nothing is left behind.
func TestNoDeadmanThere(t *testing.T) {
	for _, argv := range [][]string{{"/bin/true"}, {"/no/such/file"}} {
		dir := runDir(t)
		if c, err := Start(argv, dir, testNode, nil); err == nil {
			c.Close()
			t.Errorf("%v: started", argv)
		}
	}
}

// A container that died before it could be held is no error. A pid that now belongs
// to another process is no error either, and that process is left alone.
func TestHoldOfTheDead(t *testing.T) {
	c, b := newClient(t, runDir(t)), newBox(t, newID())
	c.Extend(soon(time.Hour))
	reused := b.container
	reused.Start++
	if _, err := ask(c, request{Op: opHold, Container: &reused}); err != nil {
		t.Error(err)
	}
	if err := b.init.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-b.died
	if _, err := ask(c, request{Op: opHold, Container: &b.container}); err != nil {
		t.Error(err)
	}
}

// The socket file is removed while no agent runs: the next agent still finds the
// deadman.
func TestSocketIsRemoved(t *testing.T) {
	dir := runDir(t)
	first := newAgent(t, dir)
	first.must(order{Extend: soon(time.Hour)})
	first.must(order{Expect: newID()})
	names, err := sockets(dir)
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	socket := filepath.Join(dir, names[0])
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	first.kill()
	poll.Until(t, "the socket is there again", func() bool { _, err := os.Lstat(socket); return err == nil })
	if c := start(t, argv(), dir, t.Output()); c.Pid() != first.deadman {
		t.Error("it is another deadman")
	}
}

// The run directory's path may be longer than sun_path.
func TestLongDirectory(t *testing.T) {
	dir := filepath.Join(runDir(t), strings.Repeat("long", 40))
	c := newClient(t, dir)
	c.Extend(soon(time.Hour))
	if err := c.Expect(newID()); err != nil {
		t.Error(err)
	}
}
