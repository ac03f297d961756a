package config

import (
	"errors"
	"fmt"

	"holdfast"
	"holdfast/internal/sessions/group"
)

// validateReplicas checks what makes a template a group.
func (t Template) validateReplicas() error {
	switch {
	case t.Replicas < 0 || t.Replicas > holdfast.MaxReplicas:
		return fmt.Errorf("replicas: %d is not between 0 and %d", t.Replicas, holdfast.MaxReplicas)
	case t.DrainTimeout < 0 || t.CaughtUp.Timeout < 0:
		return errors.New("drain_timeout and caught_up.timeout must be over 0")
	case t.Replicas == 0 && len(t.CaughtUp.Command) > 0:
		return holdfast.WithHint(errors.New("caught_up: only replicas of a group catch up"), "set replicas, or make it an init step; docs/replica-groups.md")
	case t.Replicas == 0:
		return nil
	case len(t.CaughtUp.Command) > 0 && t.CaughtUp.Command[0] == "":
		return errors.New("caught_up.command: the program's name is empty")
	case t.Idle == "suspend":
		return errors.New("replicas: a replica is never idle, so idle: suspend has no effect")
	case t.Handover == "memory":
		return errors.New("replicas: a replica is replaced by another one, which cannot have its memory: remove handover: memory")
	}
	if _, err := holdfast.ParseSessionKey(t.Name); err != nil || len(t.Name) > holdfast.MaxGroupNameLen {
		return holdfast.WithHint(fmt.Errorf("replicas: the name %q cannot be part of the replicas' keys", t.Name),
			fmt.Sprintf("use 1 to %d of a-z, 0-9 and '-', and neither start nor end with '-'", holdfast.MaxGroupNameLen))
	}
	return nil
}

// validateGroups refuses two groups of which one could have a key of the other.
func (c Config) validateGroups() error {
	for _, g := range c.Groups() {
		for _, other := range c.Groups() {
			if holdfast.IsReplicaKey(g.Name, holdfast.SessionKey(other.Name)) {
				return holdfast.WithHint(fmt.Errorf("templates: the group %s has the name of a replica of group %s", other.Name, g.Name), "rename one of the templates")
			}
		}
	}
	return nil
}

// Groups returns the templates with replicas.
func (c Config) Groups() []group.Spec {
	var out []group.Spec
	for _, t := range c.Templates {
		if t.Replicas > 0 {
			out = append(out, group.Spec{Name: t.Name, Replicas: t.Replicas, CaughtUp: t.CaughtUp.Command, CatchUpLimit: t.CaughtUp.Timeout, DrainLimit: t.DrainTimeout})
		}
	}
	return out
}
