package api

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"holdfast"
)

// Code is the stable name of an error. Codes are added, never changed.
type Code string

// The codes.
const (
	CodeBadRequest   Code = "bad_request"
	CodeBadKey       Code = "bad_key"
	CodeUnauthorized Code = "unauthorized" // token missing or wrong
	CodeReadOnly     Code = "read_only"    // the token, or a listener without tokens, allows no changes
	CodeCrossOrigin  Code = "cross_origin" // another site's page made a browser send it
	CodeNotFound     Code = "not_found"
	CodeBadMethod    Code = "method_not_allowed"
	CodeTooLarge     Code = "too_large"
	CodeBadMedia     Code = "unsupported_media_type"
	CodeBadHost      Code = "bad_host" // the Host header names another machine
	CodeInternal     Code = "internal"
	CodeBootFailed   Code = "boot_failed"
	CodeDraining     Code = "draining"
	CodeBusy         Code = "busy"
	CodeEngineDown   Code = "engine_down"
	CodeStoreDown    Code = "store_down"
	CodeNotReady     Code = "not_ready" // of /readyz
	CodeCanceled     Code = "canceled"  // the agent is ending
	CodeTimeout      Code = "timeout"
	CodeElsewhere    Code = "elsewhere"    // another node owns the session, and the request is not passed on
	CodeNodeDown     Code = "node_down"    // the node that must answer does not
	CodePortRefused  Code = "port_refused" // the session runs, and nothing listens on the port
	CodeNoMemory     Code = "no_memory"    // the session cannot be suspended, and continues
	CodeExists       Code = "exists"       // a file of that name exists
	CodeNoSpace      Code = "no_space"     // the container's disk or quota is full
	CodeBadRange     Code = "bad_range"    // no byte of the file is in the range
)

// meaning is what a code stands for: its HTTP status (RFC 9110, 15), and the error that
// a caller in Go tests for, nil if there is none.
type meaning struct {
	code     Code
	status   int
	sentinel error
}

func meanings() []meaning {
	return []meaning{
		{CodeBadRequest, http.StatusBadRequest, nil},
		{CodeBadKey, http.StatusBadRequest, nil},
		{CodeUnauthorized, http.StatusUnauthorized, nil},
		{CodeReadOnly, http.StatusForbidden, nil},
		{CodeCrossOrigin, http.StatusForbidden, nil},
		{CodeNotFound, http.StatusNotFound, holdfast.ErrNotFound},
		{CodeBadMethod, http.StatusMethodNotAllowed, nil},
		{CodeTooLarge, http.StatusRequestEntityTooLarge, nil},
		{CodeBadMedia, http.StatusUnsupportedMediaType, nil},
		{CodeBadHost, http.StatusMisdirectedRequest, nil},
		{CodeInternal, http.StatusInternalServerError, nil},
		{CodeBootFailed, http.StatusBadGateway, nil},
		{CodeDraining, http.StatusServiceUnavailable, holdfast.ErrDraining},
		{CodeBusy, http.StatusServiceUnavailable, holdfast.ErrBusy},
		{CodeEngineDown, http.StatusServiceUnavailable, holdfast.ErrEngine},
		{CodeStoreDown, http.StatusServiceUnavailable, holdfast.ErrStore},
		{CodeNotReady, http.StatusServiceUnavailable, nil},
		{CodeCanceled, http.StatusServiceUnavailable, context.Canceled},
		{CodeTimeout, http.StatusGatewayTimeout, context.DeadlineExceeded},
		{CodeElsewhere, http.StatusMisdirectedRequest, nil},
		{CodeNodeDown, http.StatusServiceUnavailable, nil},
		{CodePortRefused, http.StatusBadGateway, nil},
		{CodeNoMemory, http.StatusConflict, holdfast.ErrNoMemory},
		{CodeExists, http.StatusConflict, holdfast.ErrExists},
		{CodeNoSpace, http.StatusInsufficientStorage, holdfast.ErrNoSpace},
		{CodeBadRange, http.StatusRequestedRangeNotSatisfiable, nil},
	}
}

// meaning returns the meaning of a code. An unknown code is an internal error.
func (c Code) meaning() meaning {
	all := meanings()
	if i := slices.IndexFunc(all, func(m meaning) bool { return m.code == c }); i >= 0 {
		return all[i]
	}
	return CodeInternal.meaning()
}

// Codes lists all codes.
func Codes() (codes []Code) {
	for _, m := range meanings() {
		codes = append(codes, m.code)
	}
	return codes
}

// Status is the HTTP status of the code.
func (c Code) Status() int { return c.meaning().status }

// Error is an error on the wire. On the client's side errors.Is finds the sentinel of
// the root package that the server's error wrapped.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Advice  string `json:"hint,omitempty"` // what to do about it
	Log     string `json:"log,omitempty"`  // the container's last lines, with boot_failed
}

func (e *Error) Error() string { return e.Message }

// Hint returns the advice.
func (e *Error) Hint() string { return e.Advice }

// Unwrap returns the sentinel that the code stands for, or nil.
func (e *Error) Unwrap() error { return e.Code.meaning().sentinel }

// ErrorBody is the body of every answer that is an error.
type ErrorBody struct {
	Error Error `json:"error"`
}

// ErrorOf returns err in its wire form, nil for nil.
func ErrorOf(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	e := &Error{Code: codeOf(err), Message: err.Error(), Advice: holdfast.HintOf(err)}
	if boot, ok := errors.AsType[*holdfast.BootError](err); ok {
		e.Log = boot.Log
	}
	if e.Code == CodeElsewhere && e.Advice == "" {
		e.Advice = "send the request to that node"
	}
	return e
}

// codeOf returns the code for an error. If a boot failed because the engine or the
// store does not answer, the code names the engine or the store: that is what the
// operator must repair.
func codeOf(err error) Code {
	for _, c := range []Code{CodeEngineDown, CodeStoreDown, CodeDraining, CodeBusy} {
		if errors.Is(err, c.meaning().sentinel) {
			return c
		}
	}
	switch {
	case is[*holdfast.KeyError](err):
		return CodeBadKey
	case is[*holdfast.BootError](err):
		return CodeBootFailed
	case is[*http.MaxBytesError](err):
		return CodeTooLarge
	case is[*holdfast.ElsewhereError](err):
		return CodeElsewhere
	case errors.Is(err, holdfast.ErrBadFile):
		return CodeBadRequest
	}
	for _, c := range []Code{CodeNoMemory, CodeExists, CodeNoSpace, CodeNotFound, CodeTimeout, CodeCanceled} {
		if errors.Is(err, c.meaning().sentinel) {
			return c
		}
	}
	return CodeInternal
}

// is reports whether err wraps an error of type E.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
