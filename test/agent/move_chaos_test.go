package agent

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/sessions/session"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// slowRunsc is a wrapper around runsc. If the file of a step exists, it waits at that step,
// so that a test can act. Another file makes it damage an image.
const slowRunsc = `#!/bin/sh
real='%s' d='%s'
verb= image=
for w; do
  case $w in
  checkpoint | create | restore) verb=$w ;;
  --image-path=*) image=${w#--image-path=} ;;
  esac
done
[ -n "$verb" ] || exec "$real" "$@"
at() {
  [ -e "$d/hold-$1" ] || return 0
  : >"$d/at-$1"
  while [ -e "$d/hold-$1" ]; do sleep 0.02; done
}
at "before-$verb"
"$real" "$@"
code=$?
if [ "$verb" = checkpoint ]; then
  [ ! -e "$d/torn" ] || : >"$image/pages.img"
  [ ! -e "$d/corrupt" ] || dd if=/dev/urandom of="$image/checkpoint.img" bs=4096 count=1 conv=notrunc 2>/dev/null
fi
at "after-$verb"
exit $code
`

// moveSteps are the steps of a move at which a test can act, in their order.
var moveSteps = []string{"before-checkpoint", "after-checkpoint", "receiving", "before-create", "before-restore", "after-restore"}

// moveChaos is a fleet of two nodes with faults in its moves.
type moveChaos struct {
	*mover
	t     *testing.T
	dir   string // of the files that slowRunsc checks
	hosts []*host
	wires map[*host]*wire // from the other node to this one
	watch *lifeWatch
	// survivor is the node of a client with a kept socket; nil: the node to which the session
	// moves.
	survivor func(from, to *host) *host
	says     bool // a session that has lost its memory says why
}

func newMoveChaos(t *testing.T) *moveChaos {
	t.Helper()
	c := &moveChaos{t: t, dir: t.TempDir()}
	slow := filepath.Join(c.dir, "runsc")
	if err := os.WriteFile(slow, fmt.Appendf(nil, slowRunsc, labtest.Runsc(t), c.dir), 0o755); err != nil {
		t.Fatal(err)
	}
	c.mover = newMoverWith(t, slow)
	c.wires = map[*host]*wire{}
	c.hosts = newFleetOn(t, c.engine.Host(), 2, patient, func(int) string { return c.config("", "    fork: allowed\n") },
		func(h *host) { c.wires[h] = h.onWire() }, (*host).start)
	c.watch = watchLives(t, c.hosts[0].api())
	return c
}

func (c *moveChaos) file(name string) string { return filepath.Join(c.dir, name) }

func (c *moveChaos) ask(name string) {
	c.t.Helper()
	if err := os.WriteFile(c.file(name), nil, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func (c *moveChaos) unask(name string) {
	if err := os.Remove(c.file(name)); err != nil && !os.IsNotExist(err) {
		c.t.Error(err)
	}
}

// disturbed moves a session and calls act when the move is at the step; "" is before the
// move. Afterwards the session is served, with its memory or after a fresh boot. The command
// has ended, and no session ran twice at a time.
func (c *moveChaos) disturbed(t *testing.T, key, step string, act func(from, to *host)) (kept bool) {
	t.Helper()
	first := c.hosts[0].ask(key)
	from, _ := owner(t, c.hosts, key)
	to := besides(c.hosts, from)[0]
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	near := to
	if c.survivor != nil {
		near = c.survivor(from, to)
	}
	ws, _, err := websocket.Dial(ctx, "ws://"+near.gateway+"/s/"+key+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if step == "" {
		act(from, to)
	} else if step != "receiving" {
		c.ask("hold-" + step)
	}
	ended := make(chan result, 1)
	go func() { ended <- from.cli("session", "move", key, "--to", to.node) }()
	if step != "" {
		c.reached(t, step, to, ended)
		act(from, to)
	}
	c.unask("hold-" + step)
	c.unask("at-" + step)
	select {
	case r := <-ended:
		t.Logf("the command ended with %d: %s%s", r.code, r.out, r.err)
	case <-time.After(2 * time.Minute):
		t.Fatal("the command hangs")
	}
	poll.Until(t, "the session is served", func() bool {
		res, _ := from.get("/s/" + key + "/")
		return res.StatusCode == http.StatusOK
	})
	if err := goesOn(ctx, ws); err != nil {
		t.Errorf("the kept socket: %v", err)
	}
	kept = from.ask(key).Epoch == first.Epoch
	if text := from.show(key); c.says && !kept && !strings.Contains(text, "its memory is lost: ") {
		t.Errorf("it does not say why it booted fresh:\n%s", text)
	}
	from.must("session", "stop", key)
	c.watch.expectOneLife(t)
	return kept
}

// goesOn checks that a kept socket receives the notice of the move and then answers, or is
// closed with 1012.
func goesOn(ctx context.Context, ws *websocket.Conn) error {
	_, got, err := ws.Read(ctx)
	if err == nil && string(got) == "moved" {
		err = ws.Write(ctx, websocket.MessageText, []byte("still here"))
		for err == nil && string(got) != "still here" { // it may have moved more than once
			_, got, err = ws.Read(ctx)
		}
	}
	if err == nil && string(got) != "still here" {
		return fmt.Errorf("the socket answered %q", got)
	}
	if websocket.CloseStatus(err) == websocket.StatusServiceRestart {
		return nil
	}
	return err
}

// reached waits until the move is at the step.
func (c *moveChaos) reached(t *testing.T, step string, to *host, ended <-chan result) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		pattern := c.file("at-" + step)
		if step == "receiving" {
			pattern = filepath.Join(c.runsc.Images+"."+to.node, "got-*", "image", "*")
		}
		if found, err := filepath.Glob(pattern); err != nil || len(found) > 0 {
			return
		}
		if len(ended) > 0 {
			r := <-ended
			t.Fatalf("the move ended before the step %s: %d\n%s%s", step, r.code, r.out, r.err)
		}
	}
	t.Fatalf("the move does not reach the step %s", step)
}

// A kill of either agent at any step of a move costs the session at most its memory.
func TestMoveKilled(t *testing.T) {
	c := newMoveChaos(t)
	short := map[string]bool{"to before-restore": true}
	for _, step := range moveSteps {
		for _, victim := range []string{"from", "to"} {
			if !labtest.Long() && !short[victim+" "+step] {
				continue
			}
			t.Run(victim+" "+step, func(t *testing.T) {
				c.survivor = func(from, to *host) *host {
					if victim == "to" {
						return from
					}
					return to
				}
				c.says = victim == "from"
				kept := c.disturbed(t, "killed-"+victim+"-"+step, step, func(from, to *host) {
					h := from
					if victim == "to" {
						h = to
					}
					h.signal(os.Kill)
					<-h.ended
					c.unask("hold-" + step)
					h.start()
				})
				t.Logf("its memory was kept: %v", kept)
			})
		}
	}
	t.Run("from while it sends", c.killedWhileSending)
	if labtest.Long() {
		t.Run("before its runsc has begun", c.killedBeforeSaving)
	}
	t.Run("after its runsc has ended", c.killedAfterSaving)
	c.expectNothingStaged()
}

// killedWhileSending kills an agent in the middle of the transfer of an image. The next agent
// of the node has the complete checkpoint, and the session continues from it.
func (c *moveChaos) killedWhileSending(t *testing.T) {
	const key = "sent"
	c.hosts[0].ask(key)
	from, _ := owner(t, c.hosts, key)
	c.survivor = func(_, to *host) *host { return to }
	way := c.wires[besides(c.hosts, from)[0]]
	way.strike(wireFault{how: wireSilent, after: 1 << 20})
	if !c.disturbed(t, key, "receiving", func(from, _ *host) {
		from.signal(os.Kill)
		<-from.ended
		way.strike(wireFault{how: wireBreaks}) // what is in the buffers of the sockets must not arrive
		poll.Until(t, "the connections of the dead agent end", way.idle)
		way.heal()
		from.start()
	}) {
		t.Error("its memory is lost")
	}
}

// killedBeforeSaving kills an agent during a drain, together with a runsc that has not
// started to save. The next agent finds the session unchanged.
func (c *moveChaos) killedBeforeSaving(t *testing.T) {
	const key = "drained"
	first := c.hosts[0].ask(key)
	from, before := owner(t, c.hosts, key)
	c.killedInDrain(t, from, "before-checkpoint")
	again := from.ask(key)
	if epoch, node := from.record(key); again.Epoch != first.Epoch || epoch != int64(before.Epoch) || node != from.node {
		t.Errorf("epoch %s became %s, its record is of %d on %s", first.Epoch, again.Epoch, epoch, node)
	}
	from.must("session", "stop", key)
	from.ask(key)
	if text := from.show(key); strings.Contains(text, "lost") {
		t.Errorf("after a stop:\n%s", text)
	}
	from.must("session", "stop", key)
	c.watch.expectOneLife(t)
}

// killedAfterSaving kills an agent during a drain, when its runsc has saved a session and has
// not reported that. The session boots fresh and says why.
func (c *moveChaos) killedAfterSaving(t *testing.T) {
	const key = "unreported"
	c.hosts[0].ask(key)
	from, before := owner(t, c.hosts, key)
	c.killedInDrain(t, from, "after-checkpoint")
	from.ask(key)
	if epoch, node := from.record(key); epoch == int64(before.Epoch) {
		t.Errorf("its record is still of %d on %s", epoch, node)
	}
	if text := from.show(key); !strings.Contains(text, "its memory is lost: the agent of node "+from.node+" ended while it saved the memory") {
		t.Errorf("it does not say why it booted fresh:\n%s", text)
	}
	from.must("session", "stop", key)
	c.watch.expectOneLife(t)
}

// killedInDrain drains a node, kills its agent and runsc at a step, and starts the next
// agent.
func (c *moveChaos) killedInDrain(t *testing.T, from *host, step string) {
	t.Helper()
	poll.Until(t, "the other node, which was started again, takes sessions", func() bool {
		nodes := from.nodes()
		return len(nodes) == len(c.hosts) && !slices.ContainsFunc(nodes, func(n holdfast.Node) bool { return n.Draining || n.Trouble != "" })
	})
	time.Sleep(1500 * time.Millisecond) // the list that the agent places by is at most a second old
	c.ask("hold-" + step)
	ended := make(chan result, 1)
	go func() { ended <- from.cli("node", "drain", from.node) }()
	c.reached(t, step, nil, ended)
	from.signal(os.Kill)
	<-from.ended
	<-ended
	c.unask("hold-" + step)
	c.unask("at-" + step)
	from.start()
	poll.Until(t, "its runsc is gone", func() bool { return !running(t, c.runsc.Images+"."+from.node+"/save-") })
}

// running reports whether a process has the text in its arguments.
func running(t *testing.T, text string) bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(f string) bool {
		args, err := os.ReadFile(f)
		return err == nil && strings.Contains(string(args), text)
	})
}

// A truncated or damaged image, a full disk, and a broken connection cost the session only
// its memory.
func TestMoveSpoilt(t *testing.T) {
	labtest.NeedLong(t, "TestMoveKilled costs a session its memory, too")
	c := newMoveChaos(t)
	full := func(h *host) {
		dir := c.runsc.Images + "." + h.node
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // an error: the subtest has unmounted it
	}
	cut := func(f wireFault) func(from, to *host) { return func(_, to *host) { c.wires[to].strike(f) } }
	const part = 1 << 20 // of an image
	for name, d := range map[string]struct {
		act  func(from, to *host)
		kept bool // the memory is kept
		long bool
	}{
		"torn":                   {func(_, _ *host) { c.ask("torn") }, false, true},
		"corrupt":                {func(_, _ *host) { c.ask("corrupt") }, false, false},
		"no room where it is":    {func(from, _ *host) { full(from) }, false, true},
		"no room where it comes": {func(_, to *host) { full(to) }, false, false},
		"the way breaks":         {cut(wireFault{how: wireBreaks, after: part}), false, false},
		"the way breaks once":    {cut(wireFault{how: wireBreaks, after: part, times: 1}), true, true},
		"the way falls silent":   {cut(wireFault{how: wireSilent, after: part}), false, true},
		"the node is cut off":    {cut(wireFault{how: wireSilent, after: part, all: true, heals: 15 * time.Second}), false, true},
		"the answer is lost":     {cut(wireFault{how: wireDeaf, after: part}), true, true},
		"the way is slow":        {cut(wireFault{how: wireSlow, after: part}), true, true},
	} {
		if d.long && !labtest.Long() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if kept := c.disturbed(t, "spoilt-"+strings.ReplaceAll(name, " ", "-"), "", d.act); kept != d.kept {
				t.Errorf("its memory was kept: %v, want %v", kept, d.kept)
			}
			c.unask("torn")
			c.unask("corrupt")
			for _, h := range c.hosts {
				c.wires[h].heal()
				_ = unix.Unmount(c.runsc.Images+"."+h.node, unix.MNT_DETACH) // an error: nothing is mounted
			}
		})
	}
	// A move without a fault keeps the memory.
	if !c.disturbed(t, "whole", "", func(_, _ *host) {}) {
		t.Error("the memory of an undisturbed session is lost")
	}
	c.expectNothingStaged()
}

// expectNothingStaged checks that no image remains after moves, including those of killed
// agents.
func (c *moveChaos) expectNothingStaged() {
	c.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		left, err := filepath.Glob(c.runsc.Images + "*/*") // staged, and in transfer
		if err == nil && len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			c.t.Errorf("%v are left, %v", left, err)
			return
		}
	}
}

// lifeWatch observes the running sandboxes. Each session may have one at a time.
type lifeWatch struct {
	engine engine.Engine
	keys   map[string]string // of containers

	mu     sync.Mutex
	seen   map[string]bool // containers
	twins  []string
	failed error
}

func watchLives(t *testing.T, e engine.Engine) *lifeWatch {
	t.Helper()
	w := &lifeWatch{engine: e, keys: map[string]string{}, seen: map[string]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			w.look(ctx)
			time.Sleep(20 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return w
}

var sandboxID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// look records two concurrent sandboxes of a session. It checks the first of a pair again
// after it has seen the second.
func (w *lifeWatch) look(ctx context.Context) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		w.fail(err)
		return
	}
	type life struct {
		pid int
		id  string
	}
	living := map[string][]life{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		args := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
		i := slices.IndexFunc(args, sandboxID.MatchString)
		if err != nil || args[0] != "runsc-sandbox" || i < 0 {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(f, "/proc/%d/cmdline", &pid); err != nil || !alive(pid) {
			continue
		}
		if key := w.keyOf(ctx, args[i]); key != "" {
			living[key] = append(living[key], life{pid, args[i]})
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, all := range living {
		for _, l := range all {
			w.seen[l.id] = true
		}
		if len(all) > 1 && all[0].id != all[1].id && alive(all[0].pid) {
			w.twins = append(w.twins, fmt.Sprintf("%s: %.12s (%d) and %.12s (%d)", key, all[0].id, all[0].pid, all[1].id, all[1].pid))
		}
	}
}

// keyOf returns the session of a container. It returns "" for a container without a session
// and for a removed one.
func (w *lifeWatch) keyOf(ctx context.Context, id string) string {
	if key, ok := w.keys[id]; ok {
		return key
	}
	c, err := w.engine.Inspect(ctx, id)
	if err != nil {
		return "" // look retries
	}
	w.keys[id] = c.Labels[session.LabelSession]
	return w.keys[id]
}

func (w *lifeWatch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = err
}

func (w *lifeWatch) expectOneLife(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.twins) > 0 || w.failed != nil || len(w.seen) == 0 {
		t.Errorf("of %d containers these ran at the same time: %q; %v", len(w.seen), w.twins, w.failed)
	}
}
