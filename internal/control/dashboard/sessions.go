package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
)

type sessionsData struct {
	Rows     []api.Session
	Now      time.Time
	Filtered bool // a search may leave out sessions
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
	st := d.state(ctx)
	by := map[holdfast.State]int{}
	var rows []api.Session
	for _, s := range st.sessions {
		by[s.State]++
		if matchesSession(v.query, s) {
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
		sum.States = append(sum.States, stateCount{s, n, link("/sessions", "state", string(s))})
	}
	list := sessionsData{Now: st.now(), Filtered: v.query.search != "" || v.query.state != ""}
	list.Rows, list.pager = paginate(rows, "/sessions", v.query)
	return []part{{"notice", oldData(sum.Trouble, sum.Age)}, {"figures", sessionTotals(sum)}, {"list", sessionList(list)}}, nil
}

// matchesSession reports whether a query selects the session. node:ID selects all sessions of a
// node, any other text is part of a key, node or template.
func matchesSession(q query, s api.Session) bool {
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

// sessionData is the data of the page of one session.
type sessionData struct {
	api.Session
	Now     time.Time
	Admin   bool
	Trouble string
	// Commands are the detached commands of a session of this node. Command lines may
	// contain secrets, so only an admin sees them.
	Commands []holdfast.Command
	// Endings are how its last epochs ended, the newest first. Only an admin sees the
	// output of containers.
	Endings []holdfast.Ending
}

func sessionParts(ctx context.Context, d *Dashboard, v view) ([]part, error) {
	st := d.state(ctx)
	key, err := holdfast.ParseSessionKey(v.query.key)
	if err != nil {
		return nil, err
	}
	data := sessionData{Session: api.Session{Owner: holdfast.Owner{Key: key}}, Now: st.now(), Admin: v.admin}
	if data.Endings, err = d.endings(ctx, key, v.admin); err != nil {
		data.Trouble = err.Error()
	}
	i := slices.IndexFunc(st.sessions, func(s api.Session) bool { return s.Key == key })
	if i < 0 {
		return []part{{"session", noSession(data)}}, nil
	}
	data.Session = st.sessions[i]
	if st.err != nil {
		data.Trouble = st.err.Error()
	}
	if v.admin && data.Node == d.source.Version.Node {
		if data.Commands, err = d.source.Commands(ctx, key); err != nil {
			data.Trouble = err.Error()
		}
	}
	return []part{{"session", oneSession(data)}}, nil
}

// pathOf returns the path of a session's page.
func pathOf(key holdfast.SessionKey) string { return link("/sessions/" + string(key)) }

// mostMemory formats the most memory that a session used, and its limit.
func mostMemory(m *holdfast.MemoryHistory) string {
	switch {
	case m == nil:
		return "–"
	case m.Limit == 0:
		return size(m.Peak)
	}
	return size(m.Peak) + " of " + size(m.Limit)
}

// openSession redirects to the session's own address, which is another origin.
func (d *Dashboard) openSession(w http.ResponseWriter, r *http.Request, _ api.Caller) error {
	key, err := holdfast.ParseSessionKey(r.PathValue("key"))
	if err != nil {
		return err
	}
	to := ""
	if d.o.SessionURL != nil {
		to = d.o.SessionURL(r, key)
	}
	if to == "" {
		return &api.Error{Code: api.CodeNotFound, Message: "the gateway cannot be reached from your address",
			Advice: "it listens on loopback only; see gateway.listen"}
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
	return nil
}
