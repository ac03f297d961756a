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
	"holdfast/internal/platform/tasks"
)

// Bounds of the time for which a limit is low: that of the reclaim, and that after which
// the guardian restores the limit. During the reclaim the old limit is still set: the
// kernel sets the new one when the usage fits (mem_cgroup_resize_max,
// mm/memcontrol-v1.c).
const (
	lowFor   = 10 * time.Second
	lowSlack = 2 * time.Second
)

// guardedFor bounds the wait for the undo of a process that died recently.
const guardedFor = 5 * time.Second

// lower lowers the group's limit to n bytes below its usage, which makes the kernel
// reclaim n bytes, and restores it at once. n comes from figures that the kernel adds up within
// two seconds: if it is more than the usage, the limit is one page.
func (s *squeeze) lower(ctx context.Context, n int64) error {
	if s.env.Guard.Arm == nil {
		return errors.New("there is no guardian, so no limit may be lowered")
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
	low := max(min(usage, old)-n, pageSize()) / pageSize() * pageSize()
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
		return err // the write may still succeed; then the guardian restores the limit
	}
	s.env.step(StepRestore)
	restored := l.restore()
	s.env.step(StepDisarm)
	if restored != nil {
		return errors.Join(err, restored) // the guardian keeps trying
	}
	if e := armed.Disarm(); e != nil {
		// The guardian's deadline had passed, or it died: it wrote the old limit, as this
		// process did.
		if now, readErr := l.now(); readErr != nil || now == l.low {
			err = errors.Join(err, e, readErr, l.restore())
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // the round took long
	}
	return err
}

// unguarded waits until no earlier plan for the file exists. Until then, the file may
// show a limit that a dead process lowered.
func (s *squeeze) unguarded(ctx context.Context, file string) error {
	for end := time.Now().Add(guardedFor); ; _ = tasks.Sleep(ctx, 20*time.Millisecond) {
		guarded, err := s.env.Guard.Guarded(file)
		if err != nil || !guarded {
			return err
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return fmt.Errorf("the undo of an earlier cure for %s is not complete: %w", file, holdfast.ErrBusy)
		}
	}
}

// limit is a limit that is lowered temporarily.
type limit struct{ file, low, old string }

func (l limit) now() (string, error) {
	b, err := kfile.Read(l.file, 4096)
	return strings.TrimSpace(string(b)), err
}

// restore writes the old limit if the low one is still set. A limit that another process
// has written meanwhile stays.
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
