package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"holdfast"
	"holdfast/internal/sessions/session"
)

// leastSleep is the shortest time without a use: a session that falls asleep between two
// requests of the same client gains nothing.
const leastSleep = time.Second

func (t Template) validateSleep() error {
	if err := oneOf("sleep.idle_by", t.Sleep.IdleBy, "connections", "data"); err != nil {
		return err
	}
	if err := t.validateWake(); err != nil {
		return err
	}
	switch {
	case t.Sleep.After == 0 && t.Sleep.IdleBy == "connections":
		return nil
	case t.Sleep.After < leastSleep:
		return fmt.Errorf("sleep.after is %v, it has to be at least %v", t.Sleep.After, leastSleep)
	case t.Replicas > 0:
		return errors.New("sleep: a replica of a group is never idle")
	case t.Handover == "memory" && t.Sleep.IdleBy == "data" && t.WebSocket != "keep":
		return holdfast.WithHint(errors.New("sleep.idle_by: data with handover: memory needs websocket: keep: the session is suspended, which would close the WebSockets of its clients"),
			"docs/sleeping.md")
	case t.Runtime != "" && t.Handover != "memory":
		return holdfast.WithHint(errors.New("sleep: only containers of the engine's default runtime can be frozen: remove sleep or runtime"),
			"with gVisor, handover: memory lets sleep write the memory of an unused session to disk; docs/sleeping.md")
	}
	return nil
}

// Bounds of sleep.wake.
const (
	maxWakes    = 16
	maxWakeText = 256 // bytes of one
)

func (t Template) validateWake() error {
	switch {
	case len(t.Sleep.Wake) == 0:
		return nil
	case len(t.Sleep.Wake) > maxWakes:
		return fmt.Errorf("sleep.wake has %d times, at most %d are allowed", len(t.Sleep.Wake), maxWakes)
	case t.Sleep.After == 0 && t.Handover != "memory":
		return errors.New("sleep.wake: sessions of the template never sleep: it needs sleep.after or handover: memory")
	}
	for _, text := range t.Sleep.Wake {
		s, err := parseWake(text)
		if err == nil && s.Next(time.Now().UTC()).IsZero() {
			err = errors.New("the time never comes")
		}
		if err != nil {
			return holdfast.WithHint(fmt.Errorf("sleep.wake: %q: %w", text, err), `write minute, hour, day, month and weekday, as in "0 3 * * *"`)
		}
	}
	return nil
}

// parseWake parses one of sleep.wake: a line of cron, in UTC unless it begins with CRON_TZ=.
func parseWake(text string) (cron.Schedule, error) {
	if zone := strings.Contains(text, "TZ="); len(text) > maxWakeText || zone && !strings.Contains(text, " ") { // the parser panics without a space
		return nil, errors.New("it is not a time")
	}
	return cron.ParseStandard(text)
}

// wakes returns the times of a template that was validated.
func (s Sleep) wakes() (out []session.Schedule) {
	for _, text := range s.Wake {
		if one, err := parseWake(text); err == nil {
			out = append(out, one)
		}
	}
	return out
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
