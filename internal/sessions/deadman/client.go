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
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/kill"
)

// Client is the agent's handle on its deadman. Its methods may be called from any
// goroutine.
type Client struct {
	argv []string
	dir  string
	node holdfast.NodeID
	log  *slog.Logger

	deadline latestDeadline
	changed  chan struct{} // deadline has changed

	mu          sync.Mutex // held through each request and its reply
	link        *link      // nil while there is no deadman
	sent        boottime.Instant
	kept        map[string]container // all containers of the deadman, by id
	unconfirmed map[string]bool      // those of an earlier agent that this one has not confirmed
	reported    Fired                // last
	closed      error                // why there will be no deadman again
}

// Start attaches to this node's deadman, or starts one, and returns when it answers.
// argv is a command whose process calls Main with its last argument, dir: usually
// this program's own executable and "deadman". A deadman of another version is
// replaced: its containers and its deadline move to the new one. If the deadman has
// containers of another node, Start fails with ErrOtherNode and leaves it as it is.
// The deadman outlives this process. The caller has to call Run soon.
func Start(argv []string, dir string, node holdfast.NodeID, log *slog.Logger) (*Client, error) {
	c := &Client{
		argv: argv, dir: dir, node: node, log: log, changed: make(chan struct{}, 1),
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
		return nil, fmt.Errorf("list the deadman's containers: %w", err)
	}
	for _, x := range inherited {
		c.kept[x.ID], c.unconfirmed[x.ID] = x, true
	}
	c.sent = c.link.status.Deadline
	c.deadline.begin(c.sent)
	c.log.Info("deadman", "pid", c.link.process.Pid(), "containers", len(inherited))
	return c, nil
}

// errClosed is the error of a closed client.
var errClosed = fmt.Errorf("the client is closed: %w", ErrNone)

// Run keeps a deadman running and sends it each new deadline. When ctx is done or the
// client is closed it returns nil, and the deadman stays. Run replaces a deadman that
// died or hangs at once. It returns ErrSuperseded when another agent has taken the
// deadman over.
func (c *Client) Run(ctx context.Context) error {
	const most = time.Second
	for pause := 10 * time.Millisecond; ; {
		gone, err := c.ensure()
		switch {
		case errors.Is(err, errClosed):
			return nil
		case errors.Is(err, ErrSuperseded):
			return err
		case err != nil:
			c.log.Error("this node has no deadman; no container starts until it has one", "err", err)
			pause = min(2*pause, most)
			if tasks.Sleep(ctx, pause) != nil {
				return nil
			}
			continue
		}
		pause = 10 * time.Millisecond
		select {
		case <-gone:
		case <-c.changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// ensure makes sure that there is a deadman that knows the newest deadline. It returns
// a channel that is closed when that deadman is gone.
func (c *Client) ensure() (<-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.ready(); err != nil {
		return nil, err
	}
	return c.link.conn.Ended(), nil
}

// Extend sets the deadline at which all containers are killed. It does not block: the
// deadline goes to the deadman from Run, or before the next request.
func (c *Client) Extend(deadline boottime.Instant) {
	c.deadline.set(deadline)
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Expect announces a container that is about to start, by the engine's id
// (kill.Searchable). After ErrNone, ErrOverdue or ErrSuperseded the container must
// not start.
func (c *Client) Expect(id string) error {
	return c.put(container{ID: id})
}

// Hold announces a running container, expected before or not. A container that is
// dead already is no error. After an error the container is announced again to the
// next deadman, or found and killed by its control groups.
func (c *Client) Hold(t *kill.Target) error {
	return c.put(container{ID: t.ID, Name: plain(t.Name), Pid: t.Pid(), Start: t.Start()})
}

func (c *Client) put(x container) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.takeDeadline() // deadlines until now apply to the containers that are there already
	r := request{Op: opHold, Container: &x}
	if x.Pid == 0 {
		r.Op = opExpect
	} else {
		x.Expired, x.doubtful = c.kept[x.ID].Expired, c.kept[x.ID].doubtful
		c.kept[x.ID] = x
		// It runs, so this agent has confirmed it even if the deadman learns of it
		// later.
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

// Forget removes containers that are dead or will not start. If no deadman can be
// reached, the next one does not get them.
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
			c.log.Debug("cannot tell the deadman which containers are dead", "err", err)
			return
		}
		ids = ids[n:]
	}
}

// Unconfirmed returns the ids of containers that an earlier agent announced and this
// one has not held, expected or forgotten. A caller forgets one only after it has
// seen it dead.
func (c *Client) Unconfirmed() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	rest := make([]string, 0, len(c.unconfirmed))
	for id := range c.unconfirmed {
		rest = append(rest, id)
	}
	return rest
}

// StandDown ends the deadman and closes the client. With ErrHolds a container still
// lives, and nothing has changed.
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
		l.reap()
	case <-time.After(answerLimit):
		l.kill() // it has no containers
	}
	return nil
}

// Close ends the connection and leaves the deadman as it is. For a nil Client it does
// nothing.
func (c *Client) Close() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != nil {
		c.link.close()
		c.link = nil
	}
	c.closed = errClosed
}

// Pid is the deadman's process, or 0 if there is none.
func (c *Client) Pid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return 0
	}
	return c.link.process.Pid()
}

// do sends a request to the deadman, and to a new one if the old one turns out to be
// gone. c.mu is held.
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

// ready makes sure that there is a deadman and that it knows the newest deadline. It
// comes before every request, so that an old deadline does not apply to it. c.mu is
// held.
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
	want := c.takeDeadline()
	if want == c.sent {
		return nil
	}
	a, err := c.link.ask(request{Op: opExtend, Deadline: want})
	if err != nil {
		c.lose(err)
		return fmt.Errorf("%w: %w", c.none(), err)
	}
	c.sent = want
	c.report(a.Fired)
	c.learn(a.Expired)
	return a.refusal()
}

// takeDeadline returns the newest deadline. If an earlier one has passed, the
// containers are doubtful until a deadman reports which ones have expired. c.mu is held.
func (c *Client) takeDeadline() boottime.Instant {
	want, missed := c.deadline.take()
	if missed {
		for id, x := range c.kept {
			x.doubtful = true
			c.kept[id] = x
		}
	}
	return want
}

// learn records which containers are expired, for the next deadman. some is whether
// any are. c.mu is held.
func (c *Client) learn(some bool) {
	var all []container
	if some {
		var err error
		if all, err = c.link.list(); err != nil {
			return // the next request finds that out
		}
	}
	for id, x := range c.kept {
		x.doubtful = false
		c.kept[id] = x
	}
	for _, x := range all {
		if k, known := c.kept[x.ID]; known && x.Expired {
			k.Expired = true
			c.kept[x.ID] = k
		}
	}
}

// lose gives up a deadman that is dead or hung, and kills it so that it does no harm.
// c.mu is held.
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

// none is the reason why there is no deadman.
func (c *Client) none() error {
	if c.closed != nil {
		return c.closed
	}
	return ErrNone
}

// replace finds or starts a deadman and gives it all containers. c.mu is held.
func (c *Client) replace() error {
	if err := c.attach(); err != nil {
		return err
	}
	l := c.link
	err := func() error {
		want := c.takeDeadline()
		if want == 0 {
			return nil // it can hold no container
		}
		if _, err := l.do(request{Op: opExtend, Deadline: want}); err != nil {
			return err
		}
		c.sent = want
		for id, x := range c.kept {
			// The deadman that knew which containers were expired is dead.
			x.Expired, x.doubtful = x.Expired || x.doubtful, false
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
		return fmt.Errorf("give a new deadman the containers: %w", err)
	}
	c.log.Warn("a new deadman has taken over", "pid", l.process.Pid(), "containers", len(c.kept))
	return nil
}

// attach connects to a deadman, after the containers of all others were moved to it.
// c.mu is held.
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
			o.close() // that deadman goes on
		}
	}
	if err != nil {
		if ours != nil {
			ours.close()
		}
		return fmt.Errorf("attach to the deadman: %w", err)
	}
	c.link = ours
	c.report(ours.fired)
	return nil
}

// find connects to all living deadmen: one of this version, and the others.
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
			_ = os.Remove(filepath.Join(c.dir, name)) // a file that stays costs one failed connect each time
		case err != nil:
			c.log.Error("cannot attach to a deadman", "err", err)
		case ours == nil && l.status.Version == protocol:
			ours = l
		default:
			others = append(others, l)
		}
	}
	return ours, others, nil
}

// move gives all containers of one deadman to another, and ends the first. At every
// moment one of the two would kill in time.
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
	c.report(from.fired)
	c.log.Info("the deadman of another version has exited", "pid", from.process.Pid(), "version", from.status.Version, "containers", len(all))
	if _, err := from.do(request{Op: opStandDown, Moved: true}); err != nil {
		c.log.Warn("a deadman did not exit, and is killed", "err", err)
		from.kill()
		return nil
	}
	from.close()
	return nil
}

// Fired returns when a deadman of this node acted last, as far as it has reported that to
// this agent; zero: it has not. A nil Client has none.
func (c *Client) Fired() time.Time {
	if c == nil {
		return time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reported.At == 0 {
		return time.Time{}
	}
	return time.Now().Add(c.reported.At.Until())
}

// report logs what a deadman did.
func (c *Client) report(f *Fired) {
	if f == nil || f.At == c.reported.At && f.Dead == c.reported.Dead && f.Found == c.reported.Found && f.Left == c.reported.Left {
		return
	}
	c.reported = *f
	c.log.Error("the deadman killed containers: this node's lease was not renewed in time",
		"late", time.Duration(f.At-f.Deadline), "ago", -f.At.Until(),
		"dead", f.Dead, "found", f.Found, "left", f.Left, "containers", f.Names)
}
