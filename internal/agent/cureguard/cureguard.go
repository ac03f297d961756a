// Package cureguard hands the undo of lowered limits, of cures, to a guardian process.
package cureguard

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"holdfast/internal/hosts/doctor/cure"
	"holdfast/internal/platform/linux/boottime"
	"holdfast/internal/sessions/guardian"
)

// Guard registers the limits that cures lower with a guardian. It starts the guardian
// for the first cure. Any goroutine may call its methods.
type Guard struct {
	argv []string
	dir  string
	log  *slog.Logger

	mu    sync.Mutex
	guard *guardian.Guardian
}

// New returns a Guard. argv is the command line of a guardian.
// New appends dir, the directory of the guardian's plans.
func New(argv []string, dir string, log *slog.Logger) *Guard {
	return &Guard{argv: argv, dir: dir, log: log}
}

// Cures returns the functions that cures call.
func (c *Guard) Cures() cure.Guard {
	return cure.Guard{Arm: c.arm, Guarded: c.guarded}
}

// Tidy undoes a cure whose process and guardian were killed.
func (c *Guard) Tidy() error {
	n, err := guardian.Recover(c.dir)
	if n > 0 {
		c.log.Warn("undid what an earlier crash left", "plans", n)
	}
	if err != nil {
		return fmt.Errorf("undo what an earlier crash left: %w", err)
	}
	return nil
}

func (c *Guard) guarded(file string) (bool, error) {
	if err := c.Tidy(); err != nil {
		return false, err
	}
	return guardian.Guards(c.dir, file)
}

// armTime is how long the guardian may take to answer. A cure runs on hosts with busy CPUs, and
// waits with the limit as it was.
const armTime = 5 * time.Second

func (c *Guard) arm(file, low, old string, deadline boottime.Instant) (cure.Armed, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.guard == nil {
		g, err := guardian.Start(append(append([]string{}, c.argv...), c.dir), c.log)
		if err != nil {
			return nil, err
		}
		c.guard = g
	}
	return c.guard.Arm(guardian.Plan{
		Name: "lowering a memory limit", Deadline: deadline, Wait: armTime,
		Undo: []guardian.Undo{{Kind: guardian.Restore, Limits: []guardian.Limit{{File: file, Low: low, Old: old}}}},
	})
}

// Pid returns the pid of the guardian, or 0 if none runs.
func (c *Guard) Pid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.guard == nil {
		return 0
	}
	return c.guard.Pid()
}

// Close ends the guardian, and removes the plan of a guardian that was killed.
func (c *Guard) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.guard == nil {
		return nil
	}
	err := c.guard.Close()
	c.guard = nil
	if err != nil {
		err = fmt.Errorf("end the guardian: %w", err)
	}
	return errors.Join(err, c.Tidy())
}
