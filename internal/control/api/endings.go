package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"holdfast"
)

// History is what happened to sessions.
type History interface {
	// Endings returns how the epochs of a session, or of all sessions for "", ended on any
	// node within the last day: the newest first, at most limit (0: all). Nodes that do not
	// answer are named.
	Endings(ctx context.Context, key holdfast.SessionKey, limit int) (holdfast.EndingReport, error)

	// OwnEndings is Endings as this node alone knows them.
	OwnEndings(key holdfast.SessionKey, limit int) []holdfast.Ending

	// Events opens the events of this node's sessions after the one with the ID; 0 is the
	// first one that is kept, -1 is the next one to happen. next returns some events; with
	// wait it waits for one, until ctx is done. A reader that has missed events gets an
	// event of the type lost, and never delays a session. The caller calls closed.
	Events(after int64) (next func(ctx context.Context, wait bool) ([]holdfast.SessionEvent, error), closed func())
}

// Endings is the answer of one node to a question about endings.
type Endings struct {
	Endings []holdfast.Ending `json:"endings"`
}

const mediaEvents = "text/event-stream"

// LastEventID is the header with the id of the last event that a caller has read.
const LastEventID = "Last-Event-ID"

// Times of an event stream.
const (
	eventPing  = 15 * time.Second
	eventWrite = 10 * time.Second // for the caller to read what was sent
	eventRetry = 2 * time.Second  // what a browser waits before it connects again
)

// eventsQuery are the parameters of an event stream.
var eventsQuery = []param{
	{"after", "begin after the event of this id: 0 is the first one that is kept, -1 the next one to happen, as if absent. The header " + LastEventID + " comes first", span{-1, 1<<53 - 1}},
	{"key", "only events of this session", holdfast.SessionKey("")},
	{"follow", "true if absent; with false the stream ends after what is kept", false},
}

type historyHandlers struct{ history History }

func historyRoutes(p History) []route {
	h := historyHandlers{p}
	some := []param{{"key", "only of this session", holdfast.SessionKey("")}, limitParam}
	return []route{
		{method: "GET", path: "/v1/endings", id: "listEndings", summary: "How sessions ended on any node within the last day, the newest first, without the output of their containers. Nodes that do not answer are named.",
			access: forReader, limit: limitAsk, answer: holdfast.EndingReport{}, query: some, handle: asking(h.list)},
		{method: "GET", path: "/v1/sessions/{key}/endings", id: "sessionEndings", summary: "How the epochs of a session ended on any node within the last day, the newest first, with the last output of boots that failed.",
			access: forAdmin, limit: limitAsk, answer: holdfast.EndingReport{}, query: []param{limitParam}, handle: asking(h.ofKey)},
		{method: "GET", path: "/v1/nodes/{node}/endings", id: "nodeEndings", summary: "How sessions ended within the last day, as the given node knows it.",
			access: forAdmin, at: atItsNode, limit: limitAsk, answer: Endings{}, query: some, handle: asking(h.own)},
		{method: "GET", path: "/v1/events", id: "sessionEvents", summary: "The events of this node's sessions as server-sent events. A slow caller is told how many it has missed.",
			access: forReader, stream: true, media: mediaEvents, answer: holdfast.SessionEvent{}, query: eventsQuery, handle: h.events},
		{method: "GET", path: "/v1/nodes/{node}/events", id: "sessionEventsByID", summary: "As sessionEvents, of the given node.",
			access: forReader, at: atItsNode, stream: true, media: mediaEvents, answer: holdfast.SessionEvent{}, query: eventsQuery, handle: h.events},
	}
}

// someKey returns the query's key, "" if there is none.
func someKey(r *http.Request) (holdfast.SessionKey, error) {
	if !r.URL.Query().Has("key") {
		return "", nil
	}
	return holdfast.ParseSessionKey(r.URL.Query().Get("key"))
}

func (h historyHandlers) list(r *http.Request) (holdfast.EndingReport, error) {
	key, err := someKey(r)
	if err != nil {
		return holdfast.EndingReport{}, err
	}
	rep, err := h.ask(r, key)
	for i := range rep.Endings {
		rep.Endings[i].Log = ""
	}
	return rep, err
}

func (h historyHandlers) ofKey(r *http.Request) (holdfast.EndingReport, error) {
	key, err := keyOf(r)
	if err != nil {
		return holdfast.EndingReport{}, err
	}
	return h.ask(r, key)
}

func (h historyHandlers) ask(r *http.Request, key holdfast.SessionKey) (holdfast.EndingReport, error) {
	limit, err := limitOf(r)
	if err != nil {
		return holdfast.EndingReport{}, err
	}
	rep, err := h.history.Endings(r.Context(), key, limit)
	rep.Endings, rep.NoAnswer = notNil(rep.Endings), notNil(rep.NoAnswer)
	return rep, err
}

func (h historyHandlers) own(r *http.Request) (Endings, error) {
	key, err := someKey(r)
	if err != nil {
		return Endings{}, err
	}
	limit, err := limitOf(r)
	if err != nil {
		return Endings{}, err
	}
	return Endings{notNil(h.history.OwnEndings(key, limit))}, nil
}

// events sends events as the HTML standard describes (9.2, Server-sent events). It has no
// deadline: there may be no event for days.
func (h historyHandlers) events(w http.ResponseWriter, r *http.Request) error {
	after, err := afterOf(r)
	if err != nil {
		return err
	}
	key, err := someKey(r)
	if err != nil {
		return err
	}
	follow, err := boolOf(r.URL.Query(), "follow")
	if err != nil {
		return err
	}
	follow = follow || !r.URL.Query().Has("follow")
	next, closed := h.history.Events(after)
	defer closed()
	s := &eventStream{stream: stream{w: w, media: mediaEvents}}
	if s.write(fmt.Appendf(nil, "retry: %d\n\n", eventRetry.Milliseconds())) != nil {
		return nil
	}
	for {
		waiting, cancel := context.WithTimeout(r.Context(), eventPing)
		some, err := next(waiting, follow)
		cancel()
		switch {
		case r.Context().Err() != nil:
			return nil
		case err != nil: // nothing happened
			err = s.write([]byte(":\n\n"))
		case len(some) == 0:
			return nil
		default:
			err = s.send(some, key)
		}
		if err != nil {
			return nil //nolint:nilerr // the caller has gone, or does not read
		}
	}
}

// afterOf returns the place at which an event stream begins.
func afterOf(r *http.Request) (int64, error) {
	if !r.URL.Query().Has("after") && r.Header.Get(LastEventID) == "" {
		return -1, nil
	}
	name, text := "after", r.URL.Query().Get("after")
	if last := r.Header.Get(LastEventID); last != "" {
		name, text = LastEventID, last
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < -1 || n > 1<<53-1 {
		return 0, badQuery(name, text, "the id of an event, 0 or -1")
	}
	return n, nil
}

type eventStream struct{ stream }

func (s *eventStream) write(b []byte) error {
	deadline(http.NewResponseController(s.w).SetWriteDeadline, eventWrite)
	_, err := s.Write(b)
	return err
}

// send sends the events of a key, or all for "".
func (s *eventStream) send(some []holdfast.SessionEvent, key holdfast.SessionKey) error {
	var text []byte
	for _, e := range some {
		if key != "" && e.Key != key && e.Type != holdfast.EventLost {
			continue
		}
		data, err := json.Marshal(e)
		if err != nil {
			return err
		}
		text = fmt.Appendf(text, "id: %d\nevent: %s\ndata: %s\n\n", e.ID, e.Type, data)
	}
	if text == nil {
		return nil
	}
	return s.write(text)
}
