package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
)

// done is an action that was done.
type done struct {
	message string
	lines   []string
	back    string // path of the page to return to
}

// actOnSession does what a button asks for through the API: the API checks access,
// passes the request on to another node, and writes the audit log.
func (d *Dashboard) actOnSession(w http.ResponseWriter, r *http.Request, c api.Caller) error {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(actLimit))
	if err := form(w, r); err != nil {
		return err
	}
	key, err := holdfast.ParseSessionKey(r.PathValue("key"))
	if err != nil {
		return err
	}
	done := done{back: pathOf(key)}
	switch act := r.PathValue("act"); act {
	case "start":
		done.message, err = d.startSession(r, key)
	case "resume":
		done.message, err = d.resumeSession(r, key)
	case "stop":
		done.message, done.lines, err = d.stopSession(r, key)
		done.back = "/sessions"
	case "replace":
		done.message, done.lines, err = d.replaceSession(r, key)
	default:
		err = &api.Error{Code: api.CodeNotFound, Message: "there is nothing at " + r.URL.Path}
	}
	d.states.drop()
	if err != nil {
		return err
	}
	return write(w, http.StatusOK, donePage(d.frame("Done", "sessions", c), done))
}

func (d *Dashboard) startSession(r *http.Request, key holdfast.SessionKey) (string, error) {
	var s api.Session
	err := d.ask(r, "/v1/sessions/"+string(key)+"/start", api.StartRequest{}, &s)
	return fmt.Sprintf("Session %s is ready on node %s, after %v.", key, s.Node, s.Boot.Total()), err
}

func (d *Dashboard) resumeSession(r *http.Request, key holdfast.SessionKey) (string, error) {
	var s api.Session
	if err := d.ask(r, "/v1/sessions/"+string(key)+"/resume", api.Empty{}, &s); err != nil {
		return "", err
	}
	switch s.Memory {
	case holdfast.Restored:
		return fmt.Sprintf("Session %s continues with its memory on node %s.", key, s.Node), nil
	case "": // it was already started
		return fmt.Sprintf("Session %s is ready on node %s.", key, s.Node), nil
	}
	return fmt.Sprintf("Session %s is ready on node %s, and its memory is %s.", key, s.Node, s.Memory), nil
}

func (d *Dashboard) stopSession(r *http.Request, key holdfast.SessionKey) (string, []string, error) {
	var rep holdfast.KillReport
	if err := d.ask(r, "/v1/sessions/"+string(key)+"/stop", api.Empty{}, &rep); err != nil {
		return "", nil, err
	}
	if len(rep.Left) > 0 {
		return fmt.Sprintf("Session %s is not dead after %v.", key, rep.Took), leftLines(rep.Left), nil
	}
	return fmt.Sprintf("Session %s was stopped: its container was seen dead after %v.", key, rep.Took), nil, nil
}

func leftLines(left []holdfast.Leftover) (lines []string) {
	for _, l := range left {
		lines = append(lines, fmt.Sprintf("container %.12s %s: %s, processes %v", l.ContainerID, l.Name, l.Reason, l.Pids))
	}
	return lines
}

func (d *Dashboard) replaceSession(r *http.Request, key holdfast.SessionKey) (string, []string, error) {
	var last api.ReplaceEvent
	if err := d.ask(r, "/v1/replace", api.ReplaceRequest{Keys: []holdfast.SessionKey{key}}, &last); err != nil {
		return "", nil, err
	}
	switch {
	case last.Error != nil:
		return "", nil, last.Error
	case last.Report != nil && len(last.Report.Gone) > 0:
		return "", nil, &api.Error{Code: api.CodeNotFound, Message: "session " + string(key) + " had already ended"}
	case last.Report == nil || len(last.Report.Rows) == 0:
		return "", nil, fmt.Errorf("replacing session %s: the answer was cut off", key)
	}
	row := last.Report.Rows[0]
	if row.Error != "" {
		return "", nil, &api.Error{Code: api.CodeBootFailed, Message: row.Error}
	}
	return fmt.Sprintf("Session %s was replaced in %v: from node %s to node %s.", key, row.Total, row.From, row.To), nil, nil
}

// ask sends a request of the caller to the API with the caller's rights, and reads the
// answer, or the last line of one with several, into v.
func (d *Dashboard) ask(r *http.Request, path string, body, v any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	q, err := http.NewRequestWithContext(r.Context(), http.MethodPost, path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	q.Header = http.Header{"Content-Type": {"application/json"}}
	for _, name := range []string{"Authorization", "Cookie", "Origin", "Sec-Fetch-Site"} {
		if x := r.Header.Values(name); len(x) > 0 {
			q.Header[name] = x
		}
	}
	q.Host, q.RemoteAddr, q.TLS, q.RequestURI = r.Host, r.RemoteAddr, r.TLS, path
	a := &answer{header: http.Header{}, status: http.StatusOK}
	d.o.API.ServeHTTP(a, q)
	if a.status >= 300 {
		var e api.ErrorBody
		if err := json.Unmarshal(a.body.Bytes(), &e); err != nil {
			return fmt.Errorf("the API answered %d: %w", a.status, err)
		}
		return &e.Error
	}
	text := bytes.TrimSpace(a.body.Bytes())
	return json.Unmarshal(text[bytes.LastIndexByte(text, '\n')+1:], v)
}

// answer records the API's answer. It is for routes with small answers.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }
func (a *answer) Flush()                      {}
