package agent

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"holdfast"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// detach starts a detached command and returns its id.
func (h *host) detach(key, script string, flags ...string) string {
	h.t.Helper()
	words := append(append([]string{"session", "exec", "--detach"}, flags...), key, "--", "sh", "-c", script)
	return strings.TrimSpace(h.must(words...))
}

// commands returns the detached commands of a session.
func (h *host) commands(key string) []holdfast.Command {
	h.t.Helper()
	var list []holdfast.Command
	if err := json.Unmarshal([]byte(h.must("session", "commands", key, "--json")), &list); err != nil {
		h.t.Fatal(err)
	}
	return list
}

func (h *host) command(key, id string) holdfast.Command {
	h.t.Helper()
	for _, c := range h.commands(key) {
		if c.ID == id {
			return c
		}
	}
	h.t.Fatalf("session %s has no command %s", key, id)
	return holdfast.Command{}
}

// insides returns the pids of processes of this machine with the text in their command line,
// except holdfast's own.
func insides(t *testing.T, text string) (pids []int) {
	t.Helper()
	for _, p := range processes(t) {
		if line := strings.Join(p.args, " "); strings.Contains(line, text) && !strings.Contains(line, "holdfast") && alive(p.pid) {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// keeper returns the pid of the host's command keeper, 0 for none.
func (h *host) keeper() int {
	h.t.Helper()
	for _, p := range processes(h.t) {
		if len(p.args) == 3 && p.args[1] == "command-keeper" && strings.Contains(p.args[2], filepath.Join(h.dir, "run")) && alive(p.pid) {
			return p.pid
		}
	}
	return 0
}

// follower is a command such as `holdfast session attach`, in a process of its own.
type follower struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (h *host) attach(key, id string, flags ...string) *follower {
	h.t.Helper()
	return h.follow(append([]string{"session", "attach", key, id}, flags...)...)
}

// follow runs a command in a process of its own.
func (h *host) follow(words ...string) *follower {
	h.t.Helper()
	f := &follower{t: h.t, cmd: exec.Command(holdfastBinary(h.t), words...)}
	f.cmd.Env = append(os.Environ(), "HOLDFAST_SOCKET="+h.socket)
	f.cmd.Stderr = os.Stderr
	var err error
	if f.in, err = f.cmd.StdinPipe(); err != nil {
		h.t.Fatal(err)
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	f.out = bufio.NewReader(out)
	if err := f.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		_ = f.cmd.Process.Kill() // it may have ended
		_ = f.cmd.Wait()         // likewise
	})
	return f
}

func (f *follower) line() string {
	f.t.Helper()
	s, err := f.out.ReadString('\n')
	if err != nil {
		f.t.Fatalf("attach: %q, %v", s, err)
	}
	return strings.TrimSuffix(s, "\n")
}

// end returns the exit code of attach.
func (f *follower) end() int {
	_ = f.cmd.Wait() // the code is in its ProcessState
	return f.cmd.ProcessState.ExitCode()
}

// A detached command outlives its caller. Its output can be read from any offset, and its
// exit code is that of attach.
func TestDetachedCommands(t *testing.T) {
	h := newHost(t, "templates:"+shellTemplate)
	h.start()
	h.must("session", "start", "alice")

	// Output, offsets, exit code.
	id := h.detach("alice", "echo out; echo err >&2; exit 7")
	poll.Until(t, "the command has ended", func() bool { return !h.command("alice", id).Running() })
	if c := h.command("alice", id); c.ExitCode != 7 || c.Error != "" || c.Output != 8 || c.Lost != 0 {
		t.Errorf("%+v", c)
	}
	if r := h.cli("session", "attach", "alice", id); r.code != 7 || r.out != "out\n" || r.err != "err\n" {
		t.Errorf("%+v", r)
	}
	if r := h.cli("session", "attach", "alice", id, "--offset", "2"); r.code != 7 || len(r.out+r.err) != 6 {
		t.Errorf("%+v", r)
	}
	if r := h.cli("session", "attach", "alice", id, "--offset", "-2"); r.code != 7 || len(r.out+r.err) != 2 {
		t.Errorf("%+v", r)
	}

	// Input, and a caller that is killed.
	id = h.detach("alice", "while read line; do echo got $line; done; echo bye", "-i")
	f := h.attach("alice", id, "-i")
	fmt.Fprintln(f.in, "one")
	if got := f.line(); got != "got one" {
		t.Errorf("%q", got)
	}
	if err := f.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	f.end()
	poll.Until(t, "the caller is gone", func() bool { return h.command("alice", id).Attached == 0 })
	if c := h.command("alice", id); !c.Running() {
		t.Errorf("%+v", c)
	}
	f = h.attach("alice", id, "-i", "--offset", "8")
	fmt.Fprintln(f.in, "two")
	f.in.Close()
	if a, b := f.line(), f.line(); a != "got two" || b != "bye" {
		t.Errorf("%q, %q", a, b)
	}
	if code := f.end(); code != 0 {
		t.Errorf("exit code %d", code)
	}

	// Signals.
	id = h.detach("alice", "trap 'echo stopped; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
	f = h.attach("alice", id)
	f.line()
	h.must("session", "signal", "alice", id, "TERM")
	if got, code := f.line(), f.end(); got != "stopped" || code != 3 {
		t.Errorf("%q, exit code %d", got, code)
	}
	wantError(t, h.cli("session", "signal", "alice", id, "TERM"), 5, "does not run", "session")

	// More output than is kept.
	id = h.detach("alice", "yes 0123456789abcde | head -c 4000000; echo; echo end")
	poll.Until(t, "the command has ended", func() bool { return !h.command("alice", id).Running() })
	r := h.cli("session", "attach", "alice", id)
	c := h.command("alice", id)
	if c.Output != 4000005 || c.Lost < c.Output-512<<10 || int64(len(r.out)) != c.Output-c.Lost || !strings.HasSuffix(r.out, "\nend\n") {
		t.Errorf("%+v: %d bytes", c, len(r.out))
	}
	if want := strconv.FormatInt(c.Lost, 10) + " bytes of output lost\n"; r.err != want {
		t.Errorf("stderr %q, want %q", r.err, want)
	}

	// Commands that do not exist, and cannot run.
	if r := h.cli("session", "exec", "--detach", "alice", "--", "/no/such/program"); r.code == 0 {
		if r = h.cli("session", "attach", "alice", strings.TrimSpace(r.out)); r.code != 126 && r.code != 127 {
			t.Errorf("a missing program: %+v", r)
		}
	}
	wantError(t, h.cli("session", "attach", "alice", "nosuchid"), 5, "command nosuchid of session alice: not found", "")
	wantError(t, h.cli("session", "attach", "alice", id, "--offset", "999999999"), 2, "no such offset", "session commands")
	wantError(t, h.cli("session", "exec", "--detach", "bob", "--", "true"), 5, "bob", "")
	if got := h.metric("holdfast_commands_started_total"); got == "0" {
		poll.Until(t, "the metrics count", func() bool { return h.metric("holdfast_commands_started_total") != "0" })
	}

	// A command dies with its session, and its list stays.
	id = h.detach("alice", "echo $$; exec sleep 98765")
	pids := insides(t, "sleep 98765")
	if len(pids) == 0 {
		poll.Until(t, "the command runs", func() bool { pids = insides(t, "sleep 98765"); return len(pids) > 0 })
	}
	f = h.attach("alice", id)
	f.line()
	h.must("session", "stop", "alice")
	if left := insides(t, "sleep 98765"); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	if code := f.end(); code == 0 {
		t.Error("a killed command has exit code 0")
	}
	if c := h.command("alice", id); c.Running() || c.ExitCode == 0 {
		t.Errorf("%+v", c)
	}
	keeper := h.keeper()
	if keeper == 0 {
		t.Fatal("there is no command keeper")
	}
	h.must("agent", "stop")
	poll.Until(t, "the command keeper is gone", func() bool { return !alive(keeper) })
}

// Detached commands, and callers that are attached to them, outlive the agent: a restart, an
// upgrade and a crash.
func TestDetachedCommandsOutliveTheAgent(t *testing.T) {
	h := newHost(t, "templates:"+shellTemplate)
	h.installReal()
	h.startLogged()
	h.must("session", "start", "alice")
	id := h.detach("alice", "i=0; while [ ! -e /enough ]; do i=$((i+1)); echo line $i; sleep 0.02; done; exit 5")
	f := h.attach("alice", id)
	n := 0
	read := func(until func() bool) {
		t.Helper()
		poll.Until(t, "attach continues", func() bool {
			n++
			if got := f.line(); got != fmt.Sprintf("line %d", n) {
				t.Fatalf("%q in place of line %d", got, n)
			}
			return until()
		})
	}
	further := func() { from := n; read(func() bool { return n > from+5 }) }
	further()
	if r, u := h.upgrade(); r.code != 0 {
		t.Fatalf("%+v\n%+v", r, u)
	}
	further()
	h.configure("sessions: {idle_stop: 1s}\ntemplates:" + shellTemplate)
	h.must("agent", "stop", "--keep")
	h.startLogged()
	further()
	h.must("session", "start", "idle")
	poll.Until(t, "an idle session is stopped", func() bool { return h.running()["idle"] == nil })
	h.endAgents()
	h.startLogged()
	further()
	c := h.command("alice", id)
	if !c.Running() || c.Attached != 1 {
		t.Errorf("%+v", c)
	}
	h.must("session", "exec", "alice", "--", "touch", "/enough")
	for {
		if _, err := f.out.ReadString('\n'); err != nil {
			break
		}
	}
	if code := f.end(); code != 5 {
		t.Errorf("exit code %d", code)
	}
	poll.Until(t, "the session is idle after the end of its command", func() bool { return h.running()["alice"] == nil })
}

// If the command keeper is killed, its commands are no longer listed. They die with their
// session, and new commands get a new keeper.
func TestCommandKeeperThatIsKilled(t *testing.T) {
	h := newHost(t, "templates:"+shellTemplate)
	h.start()
	h.must("session", "start", "alice")
	id := h.detach("alice", "exec sleep 87654")
	f := h.attach("alice", id)
	poll.Until(t, "the caller is attached", func() bool { return h.command("alice", id).Attached == 1 })
	if err := syscall.Kill(h.keeper(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := f.end(); code != 5 {
		t.Errorf("exit code %d of attach", code)
	}
	if list := h.commands("alice"); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	id = h.detach("alice", "echo again")
	if r := h.cli("session", "attach", "alice", id); r.code != 0 || r.out != "again\n" {
		t.Errorf("%+v", r)
	}
	h.must("session", "stop", "alice")
	if left := insides(t, "sleep 87654"); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

// Any node of a fleet reaches the detached commands of a session.
func TestDetachedCommandsInAFleet(t *testing.T) {
	labtest.NeedLong(t, "it starts a fleet; TestPassesDetachedCommands passes requests on between two servers")
	hosts := newFleet(t, 2, patient, "templates:"+shellTemplate)
	hosts[0].must("session", "start", "alice")
	at, _ := owner(t, hosts, "alice")
	other := besides(hosts, at)[0]
	id := other.detach("alice", "read word; echo got $word; exit 4", "-i")
	f := other.attach("alice", id, "-i")
	fmt.Fprintln(f.in, "hello")
	if got, code := f.line(), f.end(); got != "got hello" || code != 4 {
		t.Errorf("%q, exit code %d", got, code)
	}
	if a, b := at.command("alice", id), other.command("alice", id); a.ExitCode != 4 || b.ExitCode != 4 {
		t.Errorf("%+v, %+v", a, b)
	}
}
