package client

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"holdfast"
)

// Error is an error of the agent. errors.Is finds the sentinel of package holdfast that
// its code stands for.
type Error struct {
	Code    string `json:"code"` // stable across versions; docs/api.md lists the codes
	Message string `json:"message"`
	Advice  string `json:"hint,omitempty"` // what to do about it
	Log     string `json:"log,omitempty"`  // with boot_failed: the container's last lines
}

func (e *Error) Error() string { return e.Message }

// Hint returns the advice.
func (e *Error) Hint() string { return e.Advice }

// Unwrap returns the sentinel that the code stands for, or nil.
func (e *Error) Unwrap() error {
	switch e.Code {
	case "not_found":
		return holdfast.ErrNotFound
	case "draining":
		return holdfast.ErrDraining
	case "busy":
		return holdfast.ErrBusy
	case "engine_down":
		return holdfast.ErrEngine
	case "store_down":
		return holdfast.ErrStore
	case "no_memory":
		return holdfast.ErrNoMemory
	case "exists":
		return holdfast.ErrExists
	case "no_space":
		return holdfast.ErrNoSpace
	}
	return nil
}

// errorOf returns the error of an answer.
func errorOf(resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("reading the agent's answer: %w", err)
	}
	var body struct{ Error Error }
	if json.Unmarshal(b, &body) != nil || body.Error.Code == "" {
		return fmt.Errorf("the server there is not a holdfast agent: status %s", resp.Status)
	}
	return &body.Error
}
