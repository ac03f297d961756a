package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"connectrpc.com/connect"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
)

// problem is an error of the control API and of files, as the SDKs read it.
type problem struct {
	Code    int    `json:"code"` // the HTTP status
	Message string `json:"message"`
	Sandbox string `json:"sandboxId,omitempty"`
}

func (p *problem) Error() string { return p.Message }

func refuse(status int, format string, args ...any) error {
	return &problem{Code: status, Message: fmt.Sprintf(format, args...)}
}

// notOffered is the answer to what the API of E2B has and Holdfast does not.
func notOffered(what string) error {
	return refuse(http.StatusNotImplemented, "Holdfast does not offer %s; docs/e2b.md has what it offers", what)
}

// notValid is the answer to a query parameter with a value that it cannot have.
func notValid(q url.Values, name string) error {
	return refuse(http.StatusBadRequest, "%s: %q is not valid", name, q.Get(name))
}

// ended is the answer about a sandbox that was killed, has reached its end, or is paused.
// The SDKs look for the status, and for these words.
func ended(id string) error {
	return &problem{http.StatusBadGateway, "The sandbox was not found", id}
}

// fail writes an error.
func fail(w http.ResponseWriter, err error) {
	p := problemOf(err)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(p.Code)
	_ = json.NewEncoder(w).Encode(p) // the client may be gone
}

// problemOf returns an error with its status.
func problemOf(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	text := err.Error()
	if hint := holdfast.HintOf(err); hint != "" {
		text += "; " + hint
	}
	status := http.StatusInternalServerError
	switch e, _ := errors.AsType[*api.Error](err); {
	case errors.Is(err, client.ErrUnreachable):
		status = http.StatusServiceUnavailable
	case errors.Is(err, holdfast.ErrNoMemory), errors.Is(err, holdfast.ErrBadFile), errors.Is(err, holdfast.ErrExists):
		status = http.StatusBadRequest // the SDKs take 409 for an answer that is no error
	case errors.Is(err, holdfast.ErrBusy):
		status = http.StatusTooManyRequests
	case e != nil:
		status = e.Code.Status()
	}
	return &problem{Code: status, Message: text}
}

// codeOf returns an error of a service with its code.
func codeOf(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*connect.Error](err); ok {
		return err
	}
	p := problemOf(err)
	code := connect.CodeInternal
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		code = connect.CodeDeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = connect.CodeCanceled
	default:
		for status, c := range map[int]connect.Code{
			http.StatusBadRequest: connect.CodeInvalidArgument, http.StatusUnauthorized: connect.CodeUnauthenticated, http.StatusNotFound: connect.CodeNotFound,
			http.StatusTooManyRequests: connect.CodeResourceExhausted, http.StatusNotImplemented: connect.CodeUnimplemented, http.StatusInsufficientStorage: connect.CodeResourceExhausted,
			http.StatusServiceUnavailable: connect.CodeUnavailable, http.StatusBadGateway: connect.CodeUnavailable,
		} {
			if p.Code == status {
				code = c
			}
		}
	}
	return connect.NewError(code, errors.New(p.Message))
}

func invalid(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}
