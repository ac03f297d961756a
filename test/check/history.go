package check

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"holdfast"
)

// Kind is the kind of a call to the store.
type Kind string

// The kinds. Expire is not a call of a node: an observer saw that the store itself deleted a
// record.
const (
	Claim   Kind = "claim"
	Advance Kind = "advance"
	Release Kind = "release"
	Read    Kind = "read"
	Expire  Kind = "expire"
)

// Result is the store's answer.
type Result string

// The results. An Unknown call may have taken effect, or may take effect later.
const (
	OK      Result = "ok"
	Taken   Result = "taken" // claim: the existing record is in Got
	Stale   Result = "stale" // advance: the existing record, if any, is in Got
	Kept    Result = "kept"  // release: the record was another one, or none
	None    Result = "none"  // read: there is no record
	Unknown Result = "unknown"
)

// Version is one version of a key's record. The zero value means no record.
type Version struct {
	Epoch    holdfast.Epoch
	Revision holdfast.Revision
}

// Op is one call about one key.
type Op struct {
	Client string // caller, for the evidence
	Kind   Kind
	Key    holdfast.SessionKey
	Call   time.Duration // since the machine booted
	Return time.Duration // 0 without an answer
	Given  Version       // version in an advance, a release or an expiry; of an expiry only the epoch counts
	Result Result
	Got    Version // in the answer: the new record of a claim or an advance, or the existing one
}

func (o Op) String() string {
	s := fmt.Sprintf("%.3fs %s %s", o.Call.Seconds(), o.Client, o.Kind)
	if o.Given != (Version{}) {
		s += fmt.Sprintf(" of epoch %d revision %d", o.Given.Epoch, o.Given.Revision)
	}
	s += fmt.Sprintf(": %s", o.Result)
	if o.Got != (Version{}) {
		s += fmt.Sprintf(", epoch %d revision %d", o.Got.Epoch, o.Got.Revision)
	}
	if o.Return > 0 {
		s += fmt.Sprintf(" (answer at %.3fs)", o.Return.Seconds())
	}
	return s
}

// Asked counts what History has checked.
type Asked struct {
	Keys    int `json:"keys"`
	Ops     int `json:"ops"`
	Claims  int `json:"claims"` // successful claims
	Unknown int `json:"unknown"`
}

func (a Asked) String() string {
	return fmt.Sprintf("%d calls about %d keys, %d claims, %d without an answer", a.Ops, a.Keys, a.Claims, a.Unknown)
}

// HistoryError means that the history of a key is impossible for a store with one owner for each
// key.
type HistoryError struct {
	Key    holdfast.SessionKey
	Before []Op // end of the longest possible part
	First  Op   // first impossible call
}

func (e *HistoryError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "session %s: no order of the calls explains\n  %s\nafter", e.Key, e.First)
	for _, o := range e.Before {
		fmt.Fprintf(&b, "\n  %s", o)
	}
	return b.String()
}

// ErrUndecided means that the check of a key exceeded its time limit.
var ErrUndecided = errors.New("undecided")

// History checks that the calls of each key are linearizable (Herlihy and Wing, 1990; the
// checker is porcupine): in some order, each call between its start and its return, a store
// with one record for each key gives the same answers. A call without an answer may take
// effect at any later time, or never. The error is ErrNothing if no claim succeeded, or joins a
// *HistoryError or ErrUndecided for each key. limit is the time limit for one key.
func History(ops []Op, limit time.Duration) (Asked, error) {
	byKey := map[holdfast.SessionKey][]Op{}
	seen := Asked{Ops: len(ops)}
	for _, o := range ops {
		byKey[o.Key] = append(byKey[o.Key], o)
		if o.Kind == Claim && o.Result == OK {
			seen.Claims++
		}
		if o.Result == Unknown {
			seen.Unknown++
		}
	}
	seen.Keys = len(byKey)
	if seen.Claims == 0 {
		return seen, fmt.Errorf("history: %w", ErrNothing)
	}
	var errs []error
	for key, of := range byKey {
		errs = append(errs, historyOf(key, of, limit))
	}
	return seen, errors.Join(errs...)
}

func historyOf(key holdfast.SessionKey, ops []Op, limit time.Duration) error {
	var history []porcupine.Operation
	clients := map[string]int{}
	for _, o := range ops {
		if o.Kind == Read && o.Result == Unknown {
			continue // it has no effect and proves nothing
		}
		if _, ok := clients[o.Client]; !ok {
			clients[o.Client] = len(clients)
		}
		end := int64(o.Return)
		if o.Result == Unknown {
			end = math.MaxInt64
		}
		history = append(history, porcupine.Operation{ClientId: clients[o.Client], Input: o, Call: int64(o.Call), Return: end})
	}
	model := model()
	switch porcupine.CheckOperationsTimeout(model, history, limit) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("session %s: %d calls in %v: %w", key, len(ops), limit, ErrUndecided)
	}
	_, info := porcupine.CheckOperationsVerbose(model, history, limit)
	return evidence(key, history, info)
}

// evidence returns the first call that the longest possible order lacks.
func evidence(key holdfast.SessionKey, history []porcupine.Operation, info porcupine.LinearizationInfo) error {
	var longest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, part := range partition {
			if len(part) > len(longest) {
				longest = part
			}
		}
	}
	explained := map[Op]bool{}
	e := &HistoryError{Key: key}
	for _, o := range longest {
		explained[o.Input.(Op)] = true
		e.Before = append(e.Before, o.Input.(Op))
	}
	e.Before = e.Before[max(0, len(e.Before)-evidenceShown):]
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	for _, o := range history {
		if !explained[o.Input.(Op)] {
			e.First = o.Input.(Op)
			break
		}
	}
	return e
}
