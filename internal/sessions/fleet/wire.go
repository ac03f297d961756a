package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"holdfast"
)

// Bounds of messages between nodes.
const (
	maxTemplateName = 253
	maxText         = 2 << 10 // of an error's text, in bytes
	maxLog          = 8 << 10 // of a container's last log lines, in bytes
)

// acquireRequest asks a node to make a session ready that it already has. With Place
// the node also claims and boots the session if necessary.
type acquireRequest struct {
	Key      holdfast.SessionKey `json:"key"`
	Template string              `json:"template,omitempty"` // with Place; "" is the default one
	Place    bool                `json:"place,omitempty"`
	By       holdfast.WakeReason `json:"by,omitempty"` // "" or unknown: a request
}

// acquireAnswer has one of the two fields.
type acquireAnswer struct {
	Owner *holdfast.Owner `json:"owner,omitempty"`
	Error *wireError      `json:"error,omitempty"`
}

// kind is the name of an error between nodes. Names are only ever added.
type kind string

const (
	kindElsewhere kind = "elsewhere"
	kindDraining  kind = "draining"
	kindBusy      kind = "busy"
	kindStopped   kind = "stopped"
	kindNotFound  kind = "not_found"
	kindStore     kind = "store"
	kindEngine    kind = "engine"
	kindBoot      kind = "boot"
	kindPending   kind = "pending" // not ready yet: ask again
	kindInternal  kind = "internal"
)

// sentinels are the errors that have a name of their own. If an error wraps several of
// them, the first one counts: errors that send the request to another node come first.
func sentinels() []struct {
	kind kind
	err  error
} {
	return []struct {
		kind kind
		err  error
	}{
		{kindDraining, holdfast.ErrDraining}, {kindBusy, holdfast.ErrBusy}, {kindStopped, holdfast.ErrStopped},
		{kindStore, holdfast.ErrStore}, {kindEngine, holdfast.ErrEngine}, {kindNotFound, holdfast.ErrNotFound},
	}
}

// wireError is an error in a message between nodes.
type wireError struct {
	Kind   kind            `json:"kind"`
	Text   string          `json:"message"`
	Advice string          `json:"hint,omitempty"`
	Owner  *holdfast.Owner `json:"owner,omitempty"` // with elsewhere
	Boot   *wireBoot       `json:"boot,omitempty"`  // with boot
}

// wireBoot is a holdfast.BootError.
type wireBoot struct {
	Key   holdfast.SessionKey `json:"key"`
	Phase string              `json:"phase"`
	Cause kind                `json:"cause,omitempty"` // the sentinel that the boot's error wraps
	Log   string              `json:"log,omitempty"`
}

// kindOf returns the name of an error. A boot that ended because its node drains, is
// full, or has no engine or store is not a failed boot: another node can do it, or
// this one later.
func kindOf(err error) kind {
	if _, ok := errors.AsType[*holdfast.ElsewhereError](err); ok {
		return kindElsewhere
	}
	k := plainKind(err)
	switch k {
	case kindDraining, kindBusy, kindStore, kindEngine:
		return k
	}
	if _, ok := errors.AsType[*holdfast.BootError](err); ok {
		return kindBoot
	}
	return k
}

func plainKind(err error) kind {
	for _, s := range sentinels() {
		if errors.Is(err, s.err) {
			return s.kind
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return kindPending
	}
	return kindInternal
}

// toWire converts an error to its wire form.
func toWire(err error) *wireError {
	w := &wireError{Kind: kindOf(err), Text: cut(err.Error(), maxText), Advice: cut(holdfast.HintOf(err), maxText)}
	switch w.Kind {
	case kindElsewhere:
		e, _ := errors.AsType[*holdfast.ElsewhereError](err)
		w.Owner = &e.Owner
	case kindBoot:
		e, _ := errors.AsType[*holdfast.BootError](err)
		w.Text = cut(e.Err.Error(), maxText)
		w.Boot = &wireBoot{Key: e.Key, Phase: e.Phase, Log: cut(e.Log, maxLog)}
		if k := plainKind(e.Err); k != kindInternal {
			w.Boot.Cause = k
		}
	}
	return w
}

// err converts the wire form to an error.
func (w *wireError) err() error {
	switch {
	case w.Kind == kindElsewhere && w.Owner != nil:
		return &holdfast.ElsewhereError{Owner: *w.Owner}
	case w.Kind == kindBoot && w.Boot != nil:
		cause := &peerError{kind: w.Boot.Cause, text: cut(w.Text, maxText), advice: cut(w.Advice, maxText)}
		return &holdfast.BootError{Key: w.Boot.Key, Phase: cut(w.Boot.Phase, 64), Err: cause, Log: cut(w.Boot.Log, maxLog)}
	}
	return &peerError{kind: w.Kind, text: cut(w.Text, maxText), advice: cut(w.Advice, maxText)}
}

// peerError is an error that another node sent, with its sentinel and hint.
type peerError struct {
	kind         kind
	text, advice string
}

func (e *peerError) Error() string { return e.text }
func (e *peerError) Hint() string  { return e.advice }

func (e *peerError) Unwrap() error {
	for _, s := range sentinels() {
		if s.kind == e.kind {
			return s.err
		}
	}
	if e.kind == kindPending {
		return context.DeadlineExceeded
	}
	return nil
}

// cut shortens a text to at most n bytes.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-3], "") + "…"
}

// check verifies the bounds of a request from another node.
func (q acquireRequest) check() error {
	if _, err := holdfast.ParseSessionKey(string(q.Key)); err != nil {
		return err
	}
	return checkTemplate(q.Template)
}

func checkTemplate(name string) error {
	if len(name) > maxTemplateName {
		return fmt.Errorf("a template's name has %d bytes, at most %d are allowed", len(name), maxTemplateName)
	}
	return nil
}
