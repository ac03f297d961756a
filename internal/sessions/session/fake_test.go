package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/platform/engine"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/sessions/kill/killtest"
)

// fakeEngine runs a real process, a sleep, for every container, and injects faults. A
// real engine would take minutes for the same number of containers. Calls that it does
// not implement panic.
type fakeEngine struct {
	engine.Engine

	mu         sync.Mutex
	run        uint64 // part of every id, so that no two engines have an id in common
	next       int
	containers map[string]*fakeContainer // by id
	down       bool
	lose       map[string]bool // do the next call of this name, and return an error
	problems   []string        // violations of the invariants

	missing map[string]bool // images that this host does not have
	pulling chan struct{}   // a pull waits until it is closed; nil: no wait
	pulled  []string        // images, in the order of the pulls
	noPull  error           // error of every pull

	noRemove error                                  // error of every removal
	orders   []string                               // calls about containers, "start <id>"
	waits    int                                    // calls of Wait
	epochs   map[holdfast.SessionKey]holdfast.Epoch // of the last start of each key
	guarded  bool                                   // a container must be announced to a deadman before its start
	heard    []string                               // ids of the warm containers that received an identity

	losing bool           // the next start is interrupted: it goes on, and the engine does not know of it
	lost   *fakeContainer // whose start was interrupted

	runtime func(id string) error // called before a container's process starts; an error is that of the start

	stepTakes time.Duration // of an init step; below 0 it never ends
	stepCode  int           // its exit code

	inspects int              // calls of Inspect that are answered before further ones hang; below 0: no limit
	hanging  chan struct{}    // receives an element for each call that hangs
	unclear  map[string]error // error of Inspect, by container id
}

type fakeContainer struct {
	engine.Container
	cmd   *exec.Cmd
	ended chan struct{} // closed when cmd was reaped
	told  string        // identity directory of a warm container; else ""
}

func newFakeEngine(t *testing.T) *fakeEngine {
	t.Helper()
	if testing.Short() && os.Geteuid() != 0 {
		t.Skip("-short without root: control groups need root")
	}
	return &fakeEngine{run: rand.Uint64(), containers: map[string]*fakeContainer{}, lose: map[string]bool{}, missing: map[string]bool{}, epochs: map[holdfast.SessionKey]holdfast.Epoch{}, inspects: -1, hanging: make(chan struct{}, 100)}
}

// set changes the engine's configuration.
func (f *fakeEngine) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// wrong records a violation.
func (f *fakeEngine) wrong() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.problems)
}

// done returns the orders of a kind; "" means all.
func (f *fakeEngine) done(kind string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.orders), func(o string) bool { return !strings.HasPrefix(o, kind) })
}

// enter locks the engine for one call. answer is the result of a call that
// succeeds.
func (f *fakeEngine) enter(ctx context.Context, call string) (answer error, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	if f.down {
		f.mu.Unlock()
		return nil, fmt.Errorf("%s: %w", call, holdfast.ErrEngine)
	}
	if f.lose[call] {
		delete(f.lose, call)
		answer = fmt.Errorf("%s: done, but the answer is 500", call)
	}
	return answer, nil
}

// find returns a container by id or name. f.mu is held.
func (f *fakeEngine) find(id string) *fakeContainer {
	for _, c := range f.containers {
		if c.ID == id || c.Name == id {
			return c
		}
	}
	return nil
}

func (f *fakeEngine) Create(ctx context.Context, s engine.Spec) (string, error) {
	answer, err := f.enter(ctx, "create")
	if err != nil {
		return "", err
	}
	defer f.mu.Unlock()
	if f.find(s.Name) != nil {
		return "", engine.ErrConflict
	}
	if f.missing[s.Image] {
		return "", engine.ErrNoImage
	}
	f.next++
	id := fmt.Sprintf("%032x%032d", f.run, f.next)
	c := &fakeContainer{Container: engine.Container{ID: id, Name: s.Name, Labels: s.Labels, State: "created", Network: s.Network, Addresses: []string{"127.0.0.1"}}}
	if c.Labels[LabelWarm] != "" {
		c.told = s.Mounts[0].Source
	}
	f.containers[id] = c
	return id, answer
}

func (f *fakeEngine) Start(ctx context.Context, id string) error {
	answer, err := f.enter(ctx, "start")
	if err != nil {
		return err
	}
	defer f.mu.Unlock()
	c := f.find(id)
	switch {
	case c == nil:
		return holdfast.ErrNotFound
	case c.State == "running":
		return answer
	}
	f.onlyOne(c, "is started")
	if f.lost != nil && !f.lost.dead() {
		f.problems = append(f.problems, c.Name+" is started while the process of an interrupted start runs")
	}
	if f.guarded && !slices.Contains(f.orders, "expect "+c.ID) {
		f.problems = append(f.problems, c.Name+" is started and the deadman does not know")
	}
	f.orders = append(f.orders, "start "+c.ID)
	if f.runtime != nil {
		if err := f.runtime(c.ID); err != nil {
			return err
		}
	}
	cmd, err := killtest.Start(c.ID)
	if err != nil {
		return err
	}
	if f.losing {
		f.losing, f.lost = false, &fakeContainer{Container: engine.Container{ID: c.ID, Pid: cmd.Process.Pid}}
		go func() { _ = cmd.Wait() }() // it is killed
		return fmt.Errorf("start: %w", engine.ErrInterrupted)
	}
	if c.told != "" {
		f.program(c)
	}
	c.cmd, c.ended = cmd, make(chan struct{})
	c.State, c.Pid = "running", c.cmd.Process.Pid
	c.ExitCode = 137
	if c.Labels[LabelStep] != "" && f.stepTakes >= 0 {
		code := f.stepCode
		time.AfterFunc(f.stepTakes, func() {
			f.mu.Lock()
			if c.State == "running" && !c.dead() {
				c.ExitCode = code
			}
			f.mu.Unlock()
			_ = cmd.Process.Kill() // it may have ended
		})
	}
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // it is killed
		removeErr := killtest.Remove(c.ID)
		f.mu.Lock()
		if removeErr != nil {
			f.problems = append(f.problems, removeErr.Error())
		}
		c.State = "exited"
		f.mu.Unlock()
		close(ended)
	}(c.cmd, c.ended)
	return answer
}

// dead reports whether the process is dead, reaped or not.
func (c *fakeContainer) dead() bool {
	st, err := proc.Host.Stat(c.Pid)
	return err != nil || st.State == 'Z' || st.State == 'X'
}

func (f *fakeEngine) Inspect(ctx context.Context, id string) (engine.Container, error) {
	answer, err := f.enter(ctx, "inspect")
	if err != nil {
		return engine.Container{}, err
	}
	if f.inspects == 0 {
		f.mu.Unlock()
		f.hanging <- struct{}{}
		<-ctx.Done()
		return engine.Container{}, ctx.Err()
	}
	defer f.mu.Unlock()
	f.inspects--
	c := f.find(id)
	if c == nil {
		return engine.Container{}, holdfast.ErrNotFound
	}
	if err := f.unclear[c.ID]; err != nil {
		return engine.Container{}, err
	}
	return c.Container, answer
}

// Stopped is false: the fake's containers end by themselves.
func (f *fakeEngine) Stopped(context.Context, string) (bool, error) { return false, nil }

func (f *fakeEngine) List(ctx context.Context, _ map[string]string) ([]engine.Container, error) {
	answer, err := f.enter(ctx, "list")
	if err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	var out []engine.Container
	for _, c := range f.containers {
		out = append(out, c.Container)
	}
	return out, answer
}

func (f *fakeEngine) Remove(ctx context.Context, id string) error {
	answer, err := f.enter(ctx, "remove")
	if err != nil {
		return err
	}
	if id == "" {
		defer f.mu.Unlock()
		return errors.New("remove container: value is empty") // as Docker's client
	}
	if f.noRemove != nil {
		defer f.mu.Unlock()
		return f.noRemove
	}
	c := f.find(id)
	f.mu.Unlock()
	if c == nil {
		return nil
	}
	f.mu.Lock()
	running := c.State == "running"
	f.mu.Unlock()
	if running {
		c.end()
	}
	f.mu.Lock()
	delete(f.containers, c.ID)
	f.mu.Unlock()
	return answer
}

func (f *fakeEngine) Wait(ctx context.Context, id string) (int, error) {
	answer, err := f.enter(ctx, "wait")
	if err != nil {
		return 0, err
	}
	c := f.find(id)
	f.waits++
	f.mu.Unlock()
	if c == nil {
		return 0, holdfast.ErrNotFound
	}
	select {
	case <-c.ended:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return c.ExitCode, answer
}

func (f *fakeEngine) ImageID(ctx context.Context, ref string) (string, error) {
	answer, err := f.enter(ctx, "image")
	if err != nil {
		return "", err
	}
	defer f.mu.Unlock()
	if f.missing[ref] {
		return "", engine.ErrNoImage
	}
	return "sha256:" + ref, answer
}

func (f *fakeEngine) Pull(ctx context.Context, ref string, _ engine.PullOptions) iter.Seq2[engine.PullEvent, error] {
	return func(yield func(engine.PullEvent, error) bool) {
		answer, err := f.enter(ctx, "pull")
		if err != nil {
			yield(engine.PullEvent{}, err)
			return
		}
		f.pulled = append(f.pulled, ref)
		wait := f.pulling
		f.mu.Unlock()
		if !yield(engine.PullEvent{Status: "Pulling"}, nil) {
			return
		}
		if wait != nil {
			select {
			case <-wait:
			case <-ctx.Done():
				yield(engine.PullEvent{}, ctx.Err())
				return
			}
		}
		f.mu.Lock()
		answer = errors.Join(answer, f.noPull)
		if f.noPull == nil {
			delete(f.missing, ref)
		}
		f.mu.Unlock()
		if answer != nil {
			yield(engine.PullEvent{}, answer)
			return
		}
		if yield(engine.PullEvent{Layer: "0123456789ab", Status: "Pull complete"}, nil) {
			yield(engine.PullEvent{Status: "Status: Downloaded newer image for " + ref}, nil)
		}
	}
}

func (f *fakeEngine) Logs(context.Context, string, engine.LogOptions, io.Writer) error {
	return errors.New("no log")
}

// running maps keys to the containers that run for them, without unclaimed warm
// containers.
func (f *fakeEngine) running() map[holdfast.SessionKey][]engine.Container {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[holdfast.SessionKey][]engine.Container{}
	for _, c := range f.containers {
		if key := c.key(); key != "" && c.State == "running" && !c.dead() {
			out[key] = append(out[key], c.Container)
		}
	}
	return out
}

// close ends every process.
func (f *fakeEngine) close() {
	f.mu.Lock()
	var all []*fakeContainer
	for _, c := range f.containers {
		if c.cmd != nil {
			all = append(all, c)
		}
	}
	f.mu.Unlock()
	for _, c := range all {
		c.end()
	}
}
