package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast"
)

// over sends an error to another node.
func over(t *testing.T, err error) error {
	t.Helper()
	b, bad := json.Marshal(toWire(err))
	must(t, bad)
	var w wireError
	must(t, json.Unmarshal(b, &w))
	return w.err()
}

func TestErrorsStayThemselves(t *testing.T) {
	for _, want := range []error{
		holdfast.ErrDraining, holdfast.ErrBusy, holdfast.ErrStopped,
		holdfast.ErrStore, holdfast.ErrEngine, holdfast.ErrNotFound,
	} {
		got := over(t, holdfast.WithHint(fmt.Errorf("session a: %w", want), "do this"))
		if !errors.Is(got, want) || got.Error() != "session a: "+want.Error() || holdfast.HintOf(got) != "do this" {
			t.Errorf("%v arrived as %v (hint %q)", want, got, holdfast.HintOf(got))
		}
	}
	if got := over(t, errors.New("oops")); got.Error() != "oops" || errors.Unwrap(got) != nil {
		t.Errorf("an error of no kind arrived as %v", got)
	}
}

func TestElsewhereStaysItself(t *testing.T) {
	want := holdfast.Owner{Key: "a", Node: "b", Epoch: 7, Revision: 9, State: holdfast.Starting, Template: "demo"}
	var got *holdfast.ElsewhereError
	if err := over(t, fmt.Errorf("lost: %w", &holdfast.ElsewhereError{Owner: want})); !errors.As(err, &got) {
		t.Fatalf("it arrived as %v", err)
	}
	if diff := cmp.Diff(want, got.Owner); diff != "" {
		t.Error(diff)
	}
}

func TestBootErrorStaysItself(t *testing.T) {
	for _, cause := range []error{nil, holdfast.ErrNotFound, holdfast.ErrStopped} {
		inner := errors.New("exit code 1")
		if cause != nil {
			inner = fmt.Errorf("exit code 1: %w", cause)
		}
		sent := &holdfast.BootError{Key: "a", Phase: "ready", Err: holdfast.WithHint(inner, "look"), Log: "last words"}
		var got *holdfast.BootError
		if err := over(t, sent); !errors.As(err, &got) || err.Error() != sent.Error() || holdfast.HintOf(err) != "look" {
			t.Fatalf("%v arrived as %v", sent, err)
		}
		if got.Key != sent.Key || got.Phase != sent.Phase || got.Log != sent.Log || cause != nil && !errors.Is(got, cause) {
			t.Errorf("%v arrived as %+v", sent, got)
		}
	}
	// One that another node could do, or this one later, is not the client's.
	for _, cause := range []error{holdfast.ErrDraining, holdfast.ErrBusy, holdfast.ErrStore, holdfast.ErrEngine, &holdfast.ElsewhereError{}} {
		if err := over(t, &holdfast.BootError{Key: "a", Phase: "queue", Err: cause}); final(err) {
			t.Errorf("%v is final", err)
		}
	}
}

func TestErrorsAreBounded(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	err := over(t, &holdfast.BootError{Key: "a", Phase: "ready", Err: errors.New(long), Log: long})
	var boot *holdfast.BootError
	if !errors.As(err, &boot) || len(boot.Log) > maxLog || len(boot.Err.Error()) > maxText {
		t.Errorf("log %d bytes, text %d", len(boot.Log), len(boot.Err.Error()))
	}
}
