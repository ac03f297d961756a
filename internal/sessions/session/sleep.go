package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"holdfast"
	"holdfast/internal/platform/tasks"
	"holdfast/internal/sessions/freeze"
)

// Sleep is when the container of a session is frozen. If the template saves memory, the
// session is suspended instead.
type Sleep struct {
	After time.Duration // time without a use; 0 is never
	// ByData counts an open WebSocket, upgraded or forwarded connection as a use only when
	// it carries data. Otherwise it is a use as long as it is open. A session that is suspended
	// counts only kept WebSockets in this way.
	ByData bool
}

const (
	// pongTime is how long a server has to answer a Ping before its session falls asleep.
	pongTime = 50 * time.Millisecond
	// sleepAgain is the time until a session that could not be frozen is tried again.
	sleepAgain = time.Minute
	// commandPoll is the time until a session in which a detached command runs is looked
	// at again.
	commandPoll = 5 * time.Second
	// sleepsAtOnce is how many containers are frozen, and their memory reclaimed, at once.
	sleepsAtOnce = 4
)

// sleeper is the sleep of an entry.
type sleeper struct {
	m         *Manager
	key       holdfast.SessionKey
	cfg       Sleep
	dead      <-chan struct{}   // the entry's
	container *freeze.Container // nil: the session is suspended instead

	uses    atomic.Int32 // that last: requests, connections that count, commands
	used    atomic.Int64 // time of the last use or data, Unix nanoseconds
	control atomic.Int64 // time of the last Ping or Pong that was passed on

	// suspending is set, with Manager.mu held, before the last look at the uses, and stays set
	// when the session is suspended.
	suspending atomic.Bool

	// Manager.mu guards these.
	falling   bool // a goroutine freezes the container, or suspends the session
	notBefore time.Time
	state     holdfast.Sleep
}

// letSleepLocked makes an entry that is ready sleep when it is not used.
func (m *Manager) letSleepLocked(e *entry) {
	if e.template.Sleep.After == 0 {
		return
	}
	s := &sleeper{m: m, key: e.key, cfg: e.template.Sleep, dead: e.dead}
	if !e.template.SaveMemory {
		var err error
		if s.container, err = freeze.Open(e.target, m.cfg.Frozen); err != nil {
			m.log.Error("a session cannot sleep", "session", e.key, "err", err)
			return
		}
	}
	s.used.Store(time.Now().UnixNano())
	e.sleeper = s
}

// useLocked counts a use of the session until unuse is called. It returns the entry's
// sleeper, nil if it never sleeps.
func (e *entry) useLocked() *sleeper {
	if e.sleeper != nil {
		e.sleeper.uses.Add(1)
	}
	return e.sleeper
}

// wakeUsed wakes a session whose use was counted. It is called with Manager.mu not held.
func (s *sleeper) wakeUsed(by holdfast.WakeReason) error {
	if err := s.wake(by); err != nil {
		s.unuse()
		return err
	}
	return nil
}

func (s *sleeper) unuse() {
	s.used.Store(time.Now().UnixNano())
	s.uses.Add(-1)
}

// wake thaws the container if it sleeps.
func (s *sleeper) wake(by holdfast.WakeReason) error {
	if s.container == nil { // it does not sleep while it has an entry
		return nil
	}
	begun := time.Now()
	woken, err := s.container.Thaw()
	if !woken {
		if err != nil {
			err = fmt.Errorf("waking session %s: %w: %w", s.key, err, holdfast.ErrEngine)
		}
		return err
	}
	if err != nil {
		s.m.log.Warn("a session is awake, but its note remains", "session", s.key, "err", err)
	}
	s.m.deps.Metrics.woken(by, time.Since(begun))
	s.m.mu.Lock()
	s.state.Since, s.state.WokenAt, s.state.WokenBy, s.state.Memory = time.Time{}, begun.UTC(), by, 0
	s.m.mu.Unlock()
	s.m.log.Debug("session woken", "session", s.key, "by", by)
	return nil
}

// idle reports whether the session has not been used for as long as it takes to fall
// asleep.
func (s *sleeper) idle() bool {
	now := time.Now().UnixNano()
	return s.uses.Load() == 0 && now-s.used.Load() >= int64(s.cfg.After) && now-s.control.Load() >= int64(pongTime)
}

// activity is the Activity of one connection.
type activity struct {
	s    *sleeper
	once sync.Once // the connection's use ends
}

// ByData implements holdfast.Activity.
func (a *activity) ByData(kept bool) {
	if kept || a.s.container != nil {
		a.once.Do(a.s.unuse)
	}
}

// Data implements holdfast.Activity. A container that is frozen reads what it is sent after it
// was thawed.
func (a *activity) Data(by holdfast.WakeReason) bool {
	s := a.s
	s.used.Store(time.Now().UnixNano())
	if s.container == nil {
		if !s.suspending.Load() {
			return true // the last look at the uses sees this one
		}
		s.m.mu.Lock() // until the look is over
		defer s.m.mu.Unlock()
		return !s.suspending.Load()
	}
	if !s.container.Asleep() {
		return true
	}
	go func() { // bounded: it only writes to the freezer
		if err := a.s.wake(by); err != nil {
			a.s.m.log.Error("data has arrived for a session that cannot be woken", "session", a.s.key, "err", err)
		}
	}()
	return true
}

// Suspending implements holdfast.Activity.
func (a *activity) Suspending() <-chan struct{} {
	if !a.s.suspending.Load() {
		return nil
	}
	return a.s.dead
}

// Control implements holdfast.Activity.
func (a *activity) Control() bool {
	a.s.control.Store(time.Now().UnixNano())
	return !a.s.asleep() && !a.s.suspending.Load()
}

// asleep reports whether the container is frozen.
func (s *sleeper) asleep() bool { return s.container != nil && s.container.Asleep() }

// sleepIdle freezes the containers of sessions that are not used.
func (m *Manager) sleepIdle(ctx context.Context) {
	least := time.Duration(0)
	for _, t := range m.cfg.Templates {
		if d := t.Sleep.After; d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	if least == 0 {
		return
	}
	every := min(max(least/10, 10*time.Millisecond), time.Second)
	slots := make(chan struct{}, sleepsAtOnce)
	for {
		select {
		case <-tasks.Tick(every):
		case <-ctx.Done():
			return
		}
		for _, s := range m.fallingAsleep() {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			m.tasks.Go(func(ctx context.Context) {
				defer func() { <-slots }()
				s.fallAsleep(ctx)
			})
		}
	}
}

// fallingAsleep marks and returns the sessions that are to fall asleep now.
func (m *Manager) fallingAsleep() (list []*sleeper) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, e := range m.sessions {
		s := e.sleeper
		// A checkpoint that an earlier agent has begun goes on.
		if s == nil || e.phase != ready || e.owner.Memory == holdfast.Saving || s.falling || now.Before(s.notBefore) {
			continue
		}
		if s.idle() && !s.asleep() {
			s.falling = true
			list = append(list, s)
		}
	}
	return list
}

// fallAsleep freezes the container, or suspends the session, unless it is used.
func (s *sleeper) fallAsleep(ctx context.Context) {
	m := s.m
	if wait := s.afterCommands(ctx); wait > 0 {
		s.tryAfter(wait)
		return
	}
	if s.container == nil {
		s.suspend(ctx)
		return
	}
	var memory int64
	err := s.container.Freeze(s.idle)
	if err == nil {
		m.mu.Lock()
		s.state.Since = time.Now().UTC()
		s.state.Sleeps++
		if !s.container.Asleep() { // it was woken before it was seen asleep
			s.state.Since = time.Time{}
		}
		m.mu.Unlock()
		m.log.Debug("session asleep", "session", s.key)
		if memory, err = s.container.Reclaim(ctx); err != nil {
			m.log.Debug("the memory of a sleeping session is not reclaimed", "session", s.key, "err", err)
			err = nil
		}
	}
	m.deps.Metrics.slept(err)
	m.mu.Lock()
	defer m.mu.Unlock()
	s.falling = false
	if !s.state.Since.IsZero() {
		s.state.Memory = memory
	}
	switch {
	case err == nil:
	case errors.Is(err, freeze.ErrUsed):
		s.notBefore = time.Now().Add(min(s.cfg.After, time.Second) / 10)
	default:
		s.notBefore = time.Now().Add(sleepAgain)
		m.log.Warn("a session cannot sleep now (will retry)", "session", s.key, "err", err)
	}
}

// tryAfter makes a session that does not fall asleep now be looked at again.
func (s *sleeper) tryAfter(d time.Duration) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.falling, s.notBefore = false, time.Now().Add(d)
}

// afterCommands returns how long detached commands still keep the session awake, at most
// commandPoll: they may run, or the last one ended less than Sleep.After ago.
func (s *sleeper) afterCommands(ctx context.Context) time.Duration {
	if s.m.deps.Commands == nil {
		return 0
	}
	last, running, err := s.m.deps.Commands(ctx, s.key)
	if running || err != nil {
		return commandPoll
	}
	return min(s.cfg.After-time.Since(last), commandPoll)
}

// asleep returns how many sessions sleep.
func (m *Manager) asleep() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.sessions {
		if e.sleeper != nil && e.sleeper.asleep() {
			n++
		}
	}
	return n
}

// wakeAll wakes every session for good. A session sleeps only while an agent can wake it.
func (m *Manager) wakeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.sessions {
		if err := e.endSleep(); err != nil { // the guardian, or the next agent, wakes it
			m.log.Error("a session cannot be woken at the agent's end", "session", e.key, "err", err)
		}
	}
}

// endSleep wakes a session that leaves, so that it can be ended in each way.
func (e *entry) endSleep() error {
	if e.sleeper == nil || e.sleeper.container == nil {
		return nil
	}
	return e.sleeper.container.End()
}
