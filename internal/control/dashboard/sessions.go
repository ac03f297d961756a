package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"holdfast"
	"holdfast/internal/control/api"
)

// sessionRow is one session.
type sessionRow struct {
	Key, Node, Template, Error string
	State                      holdfast.State
	Since, Age                 string
	Boot                       string // time of its boot; "" while it boots
	Connections                int
	Path, Open                 string
}

type sessionsData struct {
	Rows  []sessionRow
	Asked bool // only some sessions have one
	pager
}

// stateData are the numbers of sessions by state.
type stateData struct {
	States  []stateCount
	Total   string
	Trouble string
	Age     string
}

type stateCount struct {
	Name holdfast.State
	N    figure
	Path string
}

func sessionsParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	st := d.cache.get(ctx)
	by := map[holdfast.State]int{}
	var rows []api.Session
	for _, s := range st.sessions {
		by[s.State]++
		if asked(v.query, s) {
			rows = append(rows, s)
		}
	}
	sum := stateData{Total: thousands(len(st.sessions)), Age: age(st.now(), st.at)}
	if st.err != nil {
		sum.Trouble = st.err.Error()
	}
	for _, s := range states() {
		n := count(fmt.Sprintf("holdfast_node_sessions{state=%q}", s), by[s])
		if s == holdfast.IsSuspended { // a suspended session has no owner, and no node counts it
			n.Metric = ""
		}
		sum.States = append(sum.States, stateCount{s, n,
			"/sessions?" + url.Values{"state": {string(s)}}.Encode()})
	}
	shown, where := cut(rows, "/sessions", v.query)
	list := sessionsData{pager: where, Asked: v.query.search != "" || v.query.state != ""}
	for _, s := range shown {
		list.Rows = append(list.Rows, sessionRowOf(st, s))
	}
	return []part{{"notice", "notice", sum}, {"figures", "session-figures", sum}, {"list", "sessions", list}}, nil
}

// asked reports whether a query selects the session. node:ID selects all sessions of a
// node, any other text is part of a key, node or template.
func asked(q query, s api.Session) bool {
	if q.state != "" && q.state != string(s.State) {
		return false
	}
	if node, ok := strings.CutPrefix(q.search, "node:"); ok {
		return string(s.Node) == node
	}
	text := strings.ToLower(q.search)
	return text == "" || strings.Contains(string(s.Key), text) || strings.Contains(strings.ToLower(string(s.Node)), text) ||
		strings.Contains(strings.ToLower(s.Template), text)
}

func sessionRowOf(st *state, s api.Session) sessionRow {
	r := sessionRow{
		Key: string(s.Key), Node: string(s.Node), Template: s.Template, State: s.State, Error: s.LastError,
		Since: stamp(s.ClaimedAt), Age: age(st.now(), s.ClaimedAt), Connections: s.Connections,
		Path: (&url.URL{Path: "/sessions/" + string(s.Key)}).String(),
	}
	if s.Boot != (holdfast.Phases{}) {
		r.Boot = took(s.Boot.Total())
	}
	if s.State == holdfast.Ready {
		r.Open = r.Path + "/open"
	}
	return r
}

// sessionData is the data of the page of one session.
type sessionData struct {
	sessionRow
	Epoch, Address, Container string
	ReadyAt, IdleSince        string
	Phases                    []phase
	Memory, Until, UntilStamp string // of a suspended session: its saved memory, and how long it is kept
	Admin                     bool
	Here                      bool
	Trouble                   string
}

type phase struct{ Name, Took string }

func sessionParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	st := d.cache.get(ctx)
	key, err := holdfast.ParseSessionKey(v.query.key)
	if err != nil {
		return nil, &api.Error{Code: api.CodeBadKey, Message: err.Error()}
	}
	for _, s := range st.sessions {
		if s.Key == key {
			return []part{{"session", "session", sessionOf(st, s, v.admin)}}, nil
		}
	}
	return []part{{"session", "no-session", sessionData{sessionRow: sessionRow{Key: string(key)}, Admin: v.admin}}}, nil
}

func sessionOf(st *state, s api.Session, admin bool) sessionData {
	d := sessionData{
		sessionRow: sessionRowOf(st, s), Epoch: fmt.Sprint(s.Epoch), Address: s.Address, Container: s.ContainerID,
		ReadyAt: stamp(s.ReadyAt), IdleSince: stamp(s.IdleSince), Admin: admin,
	}
	if st.err != nil {
		d.Trouble = st.err.Error()
	}
	if k := s.Suspended; k != nil {
		d.Memory, d.Until, d.UntilStamp = size(k.Bytes), k.Until.UTC().Format("2 Jan 15:04"), stamp(k.Until)
	}
	if s.Boot == (holdfast.Phases{}) {
		return d
	}
	b := s.Boot
	for _, p := range []struct {
		name string
		took holdfast.Millis
	}{{"queue", b.Queue}, {"claim", b.Claim}, {"pull", b.Pull}, {"init", b.Init}, {"create", b.Create}, {"start", b.Start}, {"ready", b.Ready}} {
		d.Phases = append(d.Phases, phase{p.name, took(p.took)})
	}
	return d
}

// openSession redirects to the session's own address, which is another origin.
func (d *Dashboard) openSession(w http.ResponseWriter, r *http.Request, _ api.Caller) {
	key, err := holdfast.ParseSessionKey(r.PathValue("key"))
	if err != nil {
		d.problem(w, r, &api.Error{Code: api.CodeBadKey, Message: err.Error()})
		return
	}
	to := ""
	if d.o.SessionURL != nil {
		to = d.o.SessionURL(r, key)
	}
	if to == "" {
		d.problem(w, r, &api.Error{Code: api.CodeNotFound, Message: "the gateway cannot be reached from your address",
			Advice: "it listens on loopback only; see gateway.listen"})
		return
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}
