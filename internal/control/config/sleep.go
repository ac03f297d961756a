package config

import (
	"errors"
	"fmt"
	"time"

	"holdfast"
)

// leastSleep is the shortest time without a use: a session that falls asleep between two
// requests of the same client gains nothing.
const leastSleep = time.Second

func (t Template) validateSleep() error {
	if err := oneOf("sleep.idle_by", t.Sleep.IdleBy, "connections", "data"); err != nil {
		return err
	}
	switch {
	case t.Sleep.After == 0 && t.Sleep.IdleBy == "connections":
		return nil
	case t.Sleep.After < leastSleep:
		return fmt.Errorf("sleep.after is %v, it has to be at least %v", t.Sleep.After, leastSleep)
	case t.Replicas > 0:
		return errors.New("sleep: a replica of a group is never idle")
	case t.Runtime != "":
		return holdfast.WithHint(errors.New("sleep: only containers of the engine's default runtime can be frozen: remove sleep or runtime"),
			"with gVisor, handover: memory and idle: suspend write the memory of an unused session to disk; docs/moving.md")
	}
	return nil
}

// validateSleeps refuses templates whose sessions would be stopped before they sleep.
func (c Config) validateSleeps() error {
	for _, t := range c.Templates {
		if s := t.Sleep; s.After > 0 && c.Sessions.IdleStop > 0 && s.IdleBy != "data" && s.After >= c.Sessions.IdleStop {
			return fmt.Errorf("templates: %s: sleep.after is %v, but sessions.idle_stop is %v: its sessions would be stopped before they sleep", t.Name, s.After, c.Sessions.IdleStop)
		}
	}
	return nil
}
