package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast"
)

// StatusError is an error answer of the API server.
type StatusError struct {
	Code    int    // of HTTP
	Reason  string // NotFound, Conflict, Expired, TooManyRequests, …
	Message string
	Causes  []string      // the reasons of its details
	Retry   time.Duration // minimum wait; 0: not given
}

func (e *StatusError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("%d %s", e.Code, http.StatusText(e.Code))
	}
	return e.Message
}

// Hint implements holdfast.Hinter.
func (e *StatusError) Hint() string {
	switch e.Code {
	case http.StatusUnauthorized:
		return "the API server rejects these credentials; they may have expired"
	case http.StatusForbidden:
		return "`kubectl auth can-i --list` shows what these credentials may do"
	}
	return ""
}

// Causes of a StatusError that callers distinguish.
const (
	// CauseBudget: a disruption budget does not allow the eviction now.
	CauseBudget = "DisruptionBudget"
	// CauseNamespace: the namespace is being deleted.
	CauseNamespace = "NamespaceTerminating"
)

// Code returns the HTTP status of the API server's error answer, 0 if there was
// no answer.
func Code(err error) int {
	if s, ok := errors.AsType[*StatusError](err); ok {
		return s.Code
	}
	return 0
}

// HasCause reports whether the API server gave this cause.
func HasCause(err error, cause string) bool {
	s, ok := errors.AsType[*StatusError](err)
	return ok && slices.Contains(s.Causes, cause)
}

// RetryAfter returns the wait that the API server asked for; 0: none.
func RetryAfter(err error) time.Duration {
	if s, ok := errors.AsType[*StatusError](err); ok {
		return s.Retry
	}
	return 0
}

// UnreachableError means that the API server did not answer. The request may have
// been carried out.
type UnreachableError struct{ Err error }

func (e *UnreachableError) Error() string { return "the API server does not answer: " + e.Err.Error() }
func (e *UnreachableError) Unwrap() error { return e.Err }

// ExitCode is the exit code of the command line for an unreachable server.
func (e *UnreachableError) ExitCode() int { return 3 }

// Transient reports whether the same request may succeed later: there was no
// answer, or the answer says so.
func Transient(err error) bool {
	if _, ok := errors.AsType[*UnreachableError](err); ok {
		return true
	}
	switch Code(err) {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	case http.StatusInternalServerError:
		// Without a reason the error is permanent: a pod with two disruption
		// budgets cannot be evicted.
		s, ok := errors.AsType[*StatusError](err)
		return ok && s.Reason != ""
	}
	return false
}

// maxRetry bounds the wait that a server may ask for.
const maxRetry = 5 * time.Minute

// statusOf converts an error answer to an error.
func statusOf(r *http.Response, body []byte) error {
	e := &StatusError{Code: r.StatusCode}
	var s status
	if json.Unmarshal(body, &s) == nil && s.Kind == "Status" {
		e.Reason, e.Message = s.Reason, s.Message
		for _, c := range s.Details.Causes {
			e.Causes = append(e.Causes, c.Reason)
		}
		e.Retry = time.Duration(min(s.Details.RetryAfterSeconds, int(maxRetry/time.Second))) * time.Second
	} else {
		e.Reason = http.StatusText(r.StatusCode)
		e.Message = fmt.Sprintf("%s: %s", r.Status, strings.TrimSpace(string(body[:min(len(body), 200)])))
	}
	if d := retryAfter(r.Header.Get("Retry-After")); d > 0 {
		e.Retry = d
	}
	e.Retry = min(max(e.Retry, 0), maxRetry)
	if e.Code == http.StatusNotFound {
		return fmt.Errorf("%w (%w)", e, holdfast.ErrNotFound)
	}
	return e
}

// retryAfter parses a Retry-After header: seconds, or a date, as a proxy before
// the API server may send it (RFC 9110, section 10.2.3). 0: missing or invalid.
func retryAfter(header string) time.Duration {
	if seconds, err := strconv.Atoi(header); err == nil {
		return time.Duration(min(max(seconds, 0), int(maxRetry/time.Second))) * time.Second
	}
	at, err := http.ParseTime(header)
	if err != nil {
		return 0
	}
	return time.Until(at)
}

// status is metav1.Status.
type status struct {
	Kind    string `json:"kind"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Details struct {
		RetryAfterSeconds int `json:"retryAfterSeconds"`
		Causes            []struct {
			Reason string `json:"reason"`
		} `json:"causes"`
	} `json:"details"`
}
