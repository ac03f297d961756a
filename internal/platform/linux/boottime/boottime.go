// Package boottime reads CLOCK_BOOTTIME (clock_gettime(2)), which advances while the
// machine is suspended. Go's monotonic clock and timers stop during a suspend, so
// they cannot keep a deadline on which other machines rely.
package boottime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Instant is a moment: the time since the machine booted. It means the same to
// every process of this boot and time namespace.
type Instant time.Duration

// Now reads the clock.
func Now() Instant {
	var ts unix.Timespec
	// The call fails only for an unknown clock or a bad address.
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return Instant(ts.Nano())
}

// Add returns the moment d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Until is the time from now to i, below zero when i has passed.
func (i Instant) Until() time.Duration { return time.Duration(i - Now()) }

// Timer is a descriptor that becomes readable when a moment comes,
// timerfd_create(2). For one goroutine.
type Timer struct{ fd int }

// NewTimer makes a timer that is not set.
func NewTimer() (*Timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("timerfd_create: %w", err)
	}
	return &Timer{fd: fd}, nil
}

// Set makes the timer readable from i on; the zero Instant disarms it. A moment
// before the boot counts as passed.
func (t *Timer) Set(i Instant) error {
	if i < 0 {
		i = 1
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(i))}
	if err := unix.TimerfdSettime(t.fd, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		return fmt.Errorf("timerfd_settime: %w", err)
	}
	return nil
}

// FD is the descriptor, for poll(2).
func (t *Timer) FD() int { return t.fd }

// Alarm lets a goroutine wait for moments. For one goroutine.
type Alarm struct {
	timer *Timer
	file  *os.File // the timer's descriptor, in the runtime's poller
}

// NewAlarm makes an alarm. It costs one descriptor and no thread while it waits.
func NewAlarm() (*Alarm, error) {
	t, err := NewTimer()
	if err != nil {
		return nil, err
	}
	return &Alarm{timer: t, file: os.NewFile(uintptr(t.fd), "timerfd")}, nil
}

// Wait returns nil at i, or ctx's error when ctx is done before.
func (a *Alarm) Wait(ctx context.Context, i Instant) error {
	if err := a.timer.Set(max(i, 1)); err != nil {
		return err
	}
	for {
		if err := a.file.SetReadDeadline(time.Time{}); err != nil {
			return fmt.Errorf("timerfd: %w", err)
		}
		stop := context.AfterFunc(ctx, func() { _ = a.file.SetReadDeadline(time.Unix(1, 0)) })
		var expirations [8]byte
		_, err := a.file.Read(expirations[:])
		stop()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			return nil
		case !errors.Is(err, os.ErrDeadlineExceeded): // which an earlier Wait's context may have set
			return fmt.Errorf("timerfd: %w", err)
		}
	}
}

// Close frees the descriptor.
func (a *Alarm) Close() { _ = a.file.Close() }
