package commands

import (
	"encoding/json"
	"errors"
	"net/http"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// socketName is the keeper's socket in the agent's run directory.
const socketName = "commands.sock"

// maxMessage bounds a request and an answer that is no stream, in bytes: maxOfSession
// command lines of 64 KiB, the API's bound of a request, as JSON.
const maxMessage = 16 << 20

// Attach asks for the output of a command from an offset on.
type Attach struct {
	// Offset is the position of the first byte. Below zero it counts from the end of
	// the present output.
	Offset int64 `json:"offset"`
	// Hold makes the command wait for this caller before it writes over output that the
	// caller has not read, for holdLimit at most.
	Hold bool `json:"hold,omitempty"`
}

// signalRequest asks for a signal to a command.
type signalRequest struct {
	Signal int `json:"signal"`
}

// exit is the payload of frame.Exit, in the form of api.ExecExit.
type exit struct {
	ExitCode int        `json:"exit_code"`
	Error    *exitError `json:"error,omitempty"`
}

type exitError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Errors of a keeper that its client decides by.
var (
	errClosing = errors.New("the command keeper ends")
	// ErrOffset means that an offset is behind the end of the output.
	ErrOffset = errors.New("there is no such offset")
)

// failure is an error on the wire.
type failure struct {
	Text   string `json:"error"`
	Advice string `json:"hint,omitempty"`
	Kind   string `json:"kind,omitempty"` // of kinds
}

// kinds are the errors that keep their meaning on the wire. The first match counts.
var kinds = []struct {
	kind string
	is   error
}{
	{"closing", errClosing}, {"offset", ErrOffset}, {"unsupported", engine.ErrUnsupported},
	{"engine", holdfast.ErrEngine}, {"busy", holdfast.ErrBusy}, {"not_found", holdfast.ErrNotFound},
}

func (f *failure) Error() string { return f.Text }
func (f *failure) Hint() string  { return f.Advice }

func (f *failure) Unwrap() error {
	for _, k := range kinds {
		if k.kind == f.Kind {
			return k.is
		}
	}
	return nil
}

func failureOf(err error) *failure {
	f := &failure{Text: err.Error(), Advice: holdfast.HintOf(err)}
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			f.Kind = k.kind
			break
		}
	}
	return f
}

// answer writes v, or err if it is not nil.
func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		v = failureOf(err)
	}
	_ = json.NewEncoder(w).Encode(v) // the agent may be gone
}
