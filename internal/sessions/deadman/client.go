package deadman

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/sessions/kill"
)

// Client is the agent's side. Its methods may be called from any goroutine.
type Client struct {
	argv []string
	dir  string
	node holdfast.NodeID
	log  *slog.Logger

	want aim
	poke chan struct{} // want has changed

	mu          sync.Mutex // held through each question and its answer
	link        *link      // nil while there is none
	told        boottime.Instant
	kept        map[string]container // all that the deadman has, by id
	unconfirmed map[string]bool      // what of it was there before us and is not confirmed
	heard       Fired                // last
	closed      error                // why there will be none any more
}

// Start attaches to the deadman that stands behind this node, or starts one, and
// returns when it answers. argv is a command whose process calls Main with its
// last argument, dir: as a rule this program's own executable and "deadman". A
// deadman of another version is replaced: what it holds is moved, and its
// deadline. One that has containers of another node is ErrOtherNode, and stays as
// it is. The deadman outlives this process. Run has to be called soon.
func Start(argv []string, dir string, node holdfast.NodeID, log *slog.Logger) (*Client, error) {
	c := &Client{
		argv: argv, dir: dir, node: node, log: log, poke: make(chan struct{}, 1),
		kept: make(map[string]container), unconfirmed: make(map[string]bool),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("start a deadman: %w", err)
	}
	if err := c.attach(); err != nil {
		return nil, err
	}
	inherited, err := c.link.list()
	if err != nil {
		c.link.close()
		return nil, fmt.Errorf("what the deadman holds: %w", err)
	}
	for _, x := range inherited {
		c.kept[x.ID], c.unconfirmed[x.ID] = x, true
	}
	c.told = c.link.status.Deadline
	c.want.begin(c.told)
	c.log.Info("deadman", "pid", c.link.process.Pid(), "containers", len(inherited))
	return c, nil
}

// errClosed is what a closed client fails with.
var errClosed = fmt.Errorf("it was let go: %w", ErrNone)

// Run keeps a deadman standing by and tells it each new deadline, until ctx is
// done or the client is closed: then it returns nil, and the deadman stays. A deadman that died or hangs
// is replaced at once. ErrSuperseded when another agent has taken it over.
func (c *Client) Run(ctx context.Context) error {
	const most = time.Second
	for pause := 10 * time.Millisecond; ; {
		gone, err := c.tend()
		switch {
		case errors.Is(err, errClosed):
			return nil
		case errors.Is(err, ErrSuperseded):
			return err
		case err != nil:
			c.log.Error("no deadman stands behind this node; nothing starts meanwhile", "err", err)
			pause = min(2*pause, most)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return nil
			}
			continue
		}
		pause = 10 * time.Millisecond
		select {
		case <-gone:
		case <-c.poke:
		case <-ctx.Done():
			return nil
		}
	}
}

// tend makes sure that there is a deadman that knows the newest deadline. It
// returns what is closed when that one is gone.
func (c *Client) tend() (<-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.ready(); err != nil {
		return nil, err
	}
	return c.link.conn.Ended(), nil
}

// Extend sets the deadline at which everything is killed. It does not wait: Run
// tells the deadman, as does whatever else it is told first.
func (c *Client) Extend(deadline boottime.Instant) {
	c.want.set(deadline)
	select {
	case c.poke <- struct{}{}:
	default:
	}
}

// Expect tells of a container that is about to start, by the engine's id
// (kill.Searchable). ErrNone, ErrOverdue, ErrSuperseded: it must not start.
func (c *Client) Expect(id string) error {
	return c.put(container{ID: id})
}

// Hold tells of a running container, expected before or not. One that is dead
// already is no error. After an error it is told again to the next deadman, or
// killed by what is in its control groups.
func (c *Client) Hold(t *kill.Target) error {
	return c.put(container{ID: t.ID, Name: plain(t.Name), Pid: t.Pid(), Start: t.Start()})
}

func (c *Client) put(x container) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.aim() // what is there already is judged by the deadlines until now
	r := request{Op: opHold, Container: &x}
	if x.Pid == 0 {
		r.Op = opExpect
	} else {
		x.Condemned, x.doubtful = c.kept[x.ID].Condemned, c.kept[x.ID].doubtful
		c.kept[x.ID] = x
		// It runs, so it is ours whether the deadman can be told now or later.
		delete(c.unconfirmed, x.ID)
	}
	_, err := c.do(r)
	if err != nil {
		return fmt.Errorf("tell the deadman of container %.12s: %w", x.ID, err)
	}
	if _, known := c.kept[x.ID]; !known {
		c.kept[x.ID] = x
	}
	delete(c.unconfirmed, x.ID)
	return nil
}

// Forget tells of containers that are dead, or will not start. Where no deadman
// can be told, its successor does not hear of them.
func (c *Client) Forget(ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(ids)
}

func (c *Client) forget(ids []string) {
	for _, id := range ids {
		delete(c.kept, id)
		delete(c.unconfirmed, id)
	}
	for len(ids) > 0 {
		n := min(batch, len(ids))
		if _, err := c.do(request{Op: opForget, IDs: ids[:n]}); err != nil {
			c.log.Debug("the deadman is not told of the dead", "err", err)
			return
		}
		ids = ids[n:]
	}
}

// Unconfirmed are the ids of what an earlier agent told of, and this one has not held,
// expected or forgotten. Nobody forgets it but who has seen it dead.
func (c *Client) Unconfirmed() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	rest := make([]string, 0, len(c.unconfirmed))
	for id := range c.unconfirmed {
		rest = append(rest, id)
	}
	return rest
}

// StandDown ends the deadman and closes the client, after the last container is
// dead. ErrHolds where something lives: then all stays as it is.
func (c *Client) StandDown() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.link
	if l == nil {
		return fmt.Errorf("stand the deadman down: %w", c.none())
	}
	if _, err := l.do(request{Op: opStandDown}); err != nil {
		return fmt.Errorf("stand the deadman down: %w", err)
	}
	c.link, c.closed = nil, errClosed
	select {
	case <-l.conn.Ended():
		l.bury()
	case <-time.After(answerLimit):
		l.kill() // it has nothing to do
	}
	return nil
}

// Close ends the connection and leaves the deadman as it is.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != nil {
		c.link.close()
		c.link = nil
	}
	c.closed = errClosed
}

// Pid is the deadman's process, 0 where there is none.
func (c *Client) Pid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return 0
	}
	return c.link.process.Pid()
}

// do asks the deadman, and its successor if it turns out to be gone. c.mu is
// held.
func (c *Client) do(r request) (reply, error) {
	for try := 0; ; try++ {
		if err := c.ready(); err != nil {
			return reply{}, err
		}
		a, err := c.link.ask(r)
		if err == nil {
			return a, a.refusal()
		}
		c.lose(err)
		if try == 1 {
			return reply{}, fmt.Errorf("%w: %w", c.none(), err)
		}
	}
}

// ready makes sure that there is a deadman and that it knows the newest
// deadline: that comes before anything that would be judged by an old one. c.mu
// is held.
func (c *Client) ready() error {
	if c.link != nil {
		select {
		case <-c.link.conn.Ended():
			c.lose(c.link.why(errors.New("it is gone")))
		default:
		}
	}
	if c.closed != nil {
		return c.closed
	}
	if c.link == nil {
		if err := c.replace(); err != nil {
			return fmt.Errorf("%w: %w", ErrNone, err)
		}
	}
	want := c.aim()
	if want == c.told {
		return nil
	}
	a, err := c.link.ask(request{Op: opExtend, Deadline: want})
	if err != nil {
		c.lose(err)
		return fmt.Errorf("%w: %w", c.none(), err)
	}
	c.told = want
	c.tell(a.Fired)
	c.learn(a.Condemned)
	return a.refusal()
}

// aim is the newest deadline. Where one has passed before, a deadman has to say
// what it condemned. c.mu is held.
func (c *Client) aim() boottime.Instant {
	want, missed := c.want.take()
	if missed {
		for id, x := range c.kept {
			x.doubtful = true
			c.kept[id] = x
		}
	}
	return want
}

// learn takes note of what is condemned, if anything is, for the next deadman.
// c.mu is held.
func (c *Client) learn(some bool) {
	var all []container
	if some {
		var err error
		if all, err = c.link.list(); err != nil {
			return // the next question finds that out
		}
	}
	for id, x := range c.kept {
		x.doubtful = false
		c.kept[id] = x
	}
	for _, x := range all {
		if k, known := c.kept[x.ID]; known && x.Condemned {
			k.Condemned = true
			c.kept[x.ID] = k
		}
	}
}

// lose takes note that a deadman is of no use any more, and sees to it that it
// is no harm either. c.mu is held.
func (c *Client) lose(why error) {
	l := c.link
	c.link = nil
	if errors.Is(why, ErrSuperseded) {
		c.closed = ErrSuperseded
		l.close()
		return
	}
	c.log.Error("the deadman is gone", "pid", l.process.Pid(), "why", why)
	l.kill()
}

// none is why there is no deadman.
func (c *Client) none() error {
	if c.closed != nil {
		return c.closed
	}
	return ErrNone
}

// replace finds or starts a deadman and tells it everything. c.mu is held.
func (c *Client) replace() error {
	if err := c.attach(); err != nil {
		return err
	}
	l := c.link
	err := func() error {
		want := c.aim()
		if want == 0 {
			return nil // nothing can be held
		}
		if _, err := l.do(request{Op: opExtend, Deadline: want}); err != nil {
			return err
		}
		c.told = want
		for id, x := range c.kept {
			// Who could say what was condemned is dead.
			x.Condemned, x.doubtful = x.Condemned || x.doubtful, false
			c.kept[id] = x
			if err := l.put(x); err != nil {
				return fmt.Errorf("container %.12s: %w", x.ID, err)
			}
		}
		return nil
	}()
	if err != nil {
		c.link = nil
		l.kill()
		return fmt.Errorf("tell a new deadman everything: %w", err)
	}
	c.log.Warn("another deadman stands by", "pid", l.process.Pid(), "containers", len(c.kept))
	return nil
}

// attach connects to a deadman, having moved to it what others have. c.mu is
// held.
func (c *Client) attach() error {
	ours, others, err := c.find()
	if err != nil {
		return fmt.Errorf("attach to the deadman: %w", err)
	}
	if ours == nil {
		ours, err = spawn(c.argv, c.dir, c.node)
	}
	for _, o := range others {
		if err == nil {
			err = c.move(o, ours)
		}
		if err != nil {
			o.close() // it goes on as it is
		}
	}
	if err != nil {
		if ours != nil {
			ours.close()
		}
		return fmt.Errorf("attach to the deadman: %w", err)
	}
	c.link = ours
	c.tell(ours.fired)
	return nil
}

// find connects to all that live: one of our version, and the others.
func (c *Client) find() (ours *link, others []*link, err error) {
	names, err := sockets(c.dir)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		l, err := connect(c.dir, name, c.node)
		switch {
		case errors.Is(err, ErrOtherNode):
			for _, l := range append(others, ours) {
				if l != nil {
					l.close()
				}
			}
			return nil, nil, err
		case errors.Is(err, errGone):
			_ = os.Remove(filepath.Join(c.dir, name)) // it only costs a look each time
		case err != nil:
			c.log.Error("a deadman that cannot be attached to", "err", err)
		case ours == nil && l.status.Version == protocol:
			ours = l
		default:
			others = append(others, l)
		}
	}
	return ours, others, nil
}

// move has one deadman take everything on that another one has, which then
// ends. From the first to the last moment one of them would act in time.
func (c *Client) move(from, to *link) error {
	all, err := from.list()
	if err != nil {
		return fmt.Errorf("move from another deadman: %w", err)
	}
	d := from.status.Deadline
	if was := to.status.Deadline; d != 0 && (was == 0 || d < was) {
		if _, err := to.do(request{Op: opExtend, Deadline: d}); err != nil {
			return fmt.Errorf("move from another deadman: %w", err)
		}
		to.status.Deadline = d
	}
	for _, x := range all {
		if err := to.put(x); err != nil {
			return fmt.Errorf("move container %.12s from another deadman: %w", x.ID, err)
		}
	}
	c.tell(from.fired)
	c.log.Info("another version's deadman stands down", "pid", from.process.Pid(), "version", from.status.Version, "containers", len(all))
	if _, err := from.do(request{Op: opStandDown, Moved: true}); err != nil {
		c.log.Warn("it does not, and is killed", "err", err)
		from.kill()
		return nil
	}
	from.close()
	return nil
}

// tell logs what a deadman did.
func (c *Client) tell(f *Fired) {
	if f == nil || f.At == c.heard.At && f.Dead == c.heard.Dead && f.Found == c.heard.Found && f.Left == c.heard.Left {
		return
	}
	c.heard = *f
	c.log.Error("the deadman had to kill: this node's lease was not renewed in time",
		"late", time.Duration(f.At-f.Deadline), "ago", -f.At.Until(),
		"dead", f.Dead, "found", f.Found, "left", f.Left, "containers", f.Names)
}
