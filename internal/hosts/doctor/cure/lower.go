package cure

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/kfile"
)

// How long a limit is low at the most: the reclaim, and how far behind it the
// guardian comes. While the kernel reclaims the limit is still the old one: it is
// lowered when the usage fits (mem_cgroup_resize_max, mm/memcontrol-v1.c).
const (
	lowFor   = 10 * time.Second
	lowSlack = 2 * time.Second
)

// guardedFor is how long an undo of somebody who died just now is waited for.
const guardedFor = 5 * time.Second

// lower lowers the group's limit to n bytes below its usage, on which the kernel
// reclaims as much, and restores it at once.
func (s *squeeze) lower(ctx context.Context, n int64) error {
	if s.env.Guard.Arm == nil {
		return errors.New("no guardian stands by, so that no limit may be lowered")
	}
	file := filepath.Join(s.group.Dir(), "memory.limit_in_bytes")
	if err := s.unguarded(ctx, file); err != nil {
		return err
	}
	usage, err := s.group.MemoryUsage()
	if err != nil {
		return err
	}
	old, err := s.group.MemoryLimit()
	if err != nil {
		return err
	}
	low := (min(usage, old) - n) / pageSize() * pageSize()
	if low <= 0 {
		return fmt.Errorf("its usage is %s by now: too little for a squeeze of %s", size(usage), size(n))
	}
	l := limit{file: file, low: strconv.FormatInt(low, 10), old: strconv.FormatInt(old, 10)}
	if old == cgroup.NoLimit {
		l.old = "-1"
	}
	ctx, cancel := context.WithTimeout(ctx, lowFor)
	defer cancel()
	s.env.step(StepArm)
	armed, err := s.env.Guard.Arm(l.file, l.low, l.old, boottime.Now().Add(lowFor+lowSlack))
	if err != nil {
		return err
	}
	s.env.step(StepLower)
	err = kfile.WriteUntil(ctx, l.file, l.low)
	if errors.Is(err, kfile.ErrStuck) {
		return err // it may still go through: the guardian restores it then
	}
	s.env.step(StepRestore)
	restored := l.restore()
	s.env.step(StepDisarm)
	if restored != nil {
		return errors.Join(err, restored) // the guardian goes on trying
	}
	if e := armed.Disarm(); e != nil {
		// Its deadline had passed, or it died: it wrote the old limit, as we did.
		if now, readErr := l.now(); readErr != nil || now == l.low {
			err = errors.Join(err, e, readErr, l.restore())
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // a round that took its time
	}
	return err
}

// unguarded waits until no earlier plan stands for the file: what it shows until
// then may be the limit that somebody lowered who died.
func (s *squeeze) unguarded(ctx context.Context, file string) error {
	for end := time.Now().Add(guardedFor); ; sleep(ctx, 20*time.Millisecond) {
		guarded, err := s.env.Guard.Guarded(file)
		if err != nil || !guarded {
			return err
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("an earlier cure's undo for %s has not ended: %w", file, holdfast.ErrBusy)
		}
	}
}

// limit is one that is lowered for a moment.
type limit struct{ file, low, old string }

func (l limit) now() (string, error) {
	b, err := kfile.Read(l.file, 4096)
	return strings.TrimSpace(string(b)), err
}

// restore writes the old limit where the low one stands: one that somebody else
// has written meanwhile is left alone.
func (l limit) restore() error {
	now, err := l.now()
	if err != nil || now != l.low {
		return err
	}
	if err := kfile.Write(l.file, l.old); err != nil {
		return fmt.Errorf("restore the limit %s: %w", l.old, err)
	}
	return nil
}
