package dashboard

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/a-h/templ"

	"holdfast/internal/control/api"
)

// page is a page of the dashboard.
type page struct {
	name, pattern, title string
	menu                 bool     // in the menu of all pages
	under                string   // the menu entry that it belongs to
	params               []string // query parameters of this page, beside the common ones
	static               bool     // its content does not change, so it has no stream
	scripts              []string // beside those of a stream
	search               func(q query) templ.Component
	// parts returns the page's parts, always the same ones in the same order. It returns
	// an error if the requested object does not exist.
	parts func(ctx context.Context, d *Dashboard, v view) ([]part, error)
}

// part is a piece of a page: an element's id, and its content.
type part struct {
	id      string
	content templ.Component
}

// pages lists the pages in the order of the menu.
func pages() []page {
	return []page{
		{name: "fleet", pattern: "/{$}", title: "Fleet", menu: true, parts: fleetParts,
			search: func(q query) templ.Component {
				return search("/", "Node, version or trouble", "Condition", conditions(), q)
			}},
		{name: "sessions", pattern: "/sessions", title: "Sessions", menu: true, parts: sessionsParts,
			search: func(q query) templ.Component {
				return search("/sessions", "Key, node or template", "Phase", states(), q)
			}},
		{name: "session", pattern: "/sessions/{key}", title: "Session", under: "sessions", parts: sessionParts},
		{name: "slo", pattern: "/slo", title: "Boot and connect", menu: true, parts: sloParts},
		{name: "spinup", pattern: "/spinup", title: "Spin-up", menu: true, params: []string{"per", "by", "kind"}, parts: spinupParts},
		{name: "slow", pattern: "/spinup/slow", title: "Slow spin-ups", under: "spinup", static: true,
			params: []string{"phase", "by", "group", "kind", "since", "until"}, parts: slowParts},
		{name: "spinfleet", pattern: "/spinup/fleet", title: "Spin-ups of the fleet", under: "spinup", static: true, params: []string{"by"}, parts: spinFleetParts},
		{name: "spin", pattern: "/spinup/{key}", title: "Spin-up", under: "spinup", static: true, parts: oneSpinParts},
		{name: "gc", pattern: "/gc", title: "Garbage collection", menu: true, parts: gcParts},
		{name: "protect", pattern: "/protect", title: "Protect", menu: true, parts: protectParts},
		{name: "doctor", pattern: "/doctor", title: "Doctor", menu: true, scripts: []string{"copy.js"}, parts: doctorParts},
		{name: "compare", pattern: "/doctor/fleet", title: "Hosts compared", under: "doctor", static: true, params: []string{"by"}, parts: compareParts},
		{name: "recordings", pattern: "/doctor/recordings", title: "Recordings", under: "doctor", static: true, parts: recordingsParts},
		{name: "recording", pattern: "/doctor/recordings/{key}", title: "Recording", under: "doctor", static: true, parts: recordingParts},
	}
}

// path returns the path of the page, for the menu.
func (p page) path() string {
	if p.name == "fleet" {
		return "/"
	}
	return p.pattern
}

// query has the parameters of a request for a page.
type query struct {
	key    string // of a session
	search string
	state  string
	page   int               // from 1
	own    map[string]string // the page's own parameters, without empty ones
}

func queryOf(r *http.Request, p page) query {
	v := r.URL.Query()
	text := func(name string) string { s := v.Get(name); return s[:min(len(s), maxQuery)] }
	q := query{key: r.PathValue("key"), search: text("q"), state: text("state"), page: 1}
	if q.key == "" {
		q.key = text("key") // of a stream
	}
	if n, err := strconv.Atoi(v.Get("page")); err == nil {
		q.page = max(1, n)
	}
	for _, name := range p.params {
		if s := text(name); s != "" {
			if q.own == nil {
				q.own = map[string]string{}
			}
			q.own[name] = s
		}
	}
	return q
}

// values returns the query in the form of a URL.
func (q query) values() url.Values {
	v := url.Values{}
	for name, s := range map[string]string{"key": q.key, "q": q.search, "state": q.state} {
		if s != "" {
			v.Set(name, s)
		}
	}
	for name, s := range q.own {
		v.Set(name, s)
	}
	if q.page > 1 {
		v.Set("page", strconv.Itoa(q.page))
	}
	return v
}

// with returns a path with the query's own parameters, and pairs of names and values
// that replace them; "" removes one.
func (q query) with(path string, pairs ...string) string {
	v := url.Values{}
	for name, s := range q.own {
		v.Set(name, s)
	}
	for i := 0; i < len(pairs); i += 2 {
		if v.Del(pairs[i]); pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return (&url.URL{Path: path, RawQuery: v.Encode()}).String()
}

// view is a page as a browser shows it.
type view struct {
	page  page
	query query
	admin bool
}

func (v view) id() string { return fmt.Sprint(v.page.name, v.admin, v.query.values().Encode()) }

// frame is the common part around every page's content.
type frame struct {
	Title, Node, Version string
	Menu                 []choice
	Caller               string
	Admin, Login         bool // has admin access; came by a login
	assets               assets
}

func (d *Dashboard) frame(title, here string, c api.Caller) frame {
	v := d.source.Version
	f := frame{Title: title, Node: string(v.Node), Version: v.Version, Caller: c.Name, Admin: c.Admin, Login: d.o.Access.Logins != nil && c.Name != "", assets: d.assets}
	for _, p := range pages() {
		if p.menu && c.Name != "" {
			f.Menu = append(f.Menu, choice{p.title, p.path(), p.name == here})
		}
	}
	return f
}

// pageData is the data of a whole page.
type pageData struct {
	frame
	Scripts []string
	Search  templ.Component // nil if the page has no search
	Live    string          // path of its stream; "" if it is not kept up to date
	Toggle  string          // path of the same page with the stream off, or on again
	At      string          // time of rendering, which a page without scripts keeps
	Parts   []part
}

// show answers with a whole page.
func (d *Dashboard) show(w http.ResponseWriter, r *http.Request, c api.Caller, p page) error {
	v := view{page: p, query: queryOf(r, p), admin: c.Admin}
	parts, err := p.parts(r.Context(), d, v)
	if err != nil {
		return err
	}
	title := p.title
	if v.query.key != "" {
		title = p.title + " " + v.query.key
	}
	data := pageData{frame: d.frame(title, cmp.Or(p.under, p.name), c), Scripts: p.scripts, Parts: parts, At: time.Now().UTC().Format(time.TimeOnly)}
	if !p.static {
		data.Live, data.Toggle = liveOf(r, v)
	}
	if data.Live != "" {
		data.Scripts = append([]string{htmx, "live.js"}, p.scripts...)
	}
	if p.search != nil {
		data.Search = p.search(v.query)
	}
	return write(w, http.StatusOK, wholePage(data))
}

// liveOf returns the path of a page's stream, and the path that switches the stream off
// or on.
func liveOf(r *http.Request, v view) (stream, other string) {
	there := url.URL{Path: r.URL.Path}
	values := v.query.values()
	if v.query.key != "" {
		values.Del("key") // it is part of the path
	}
	if r.URL.Query().Get("live") == "off" {
		there.RawQuery = values.Encode()
		return "", there.String()
	}
	values.Set("live", "off")
	there.RawQuery = values.Encode()
	return (&url.URL{Path: "/live/" + v.page.name, RawQuery: v.query.values().Encode()}).String(), there.String()
}

// fragments renders a page's parts.
func (d *Dashboard) fragments(ctx context.Context, v view) ([]fragment, error) {
	parts, err := v.page.parts(ctx, d, v)
	if err != nil {
		return nil, err
	}
	var out []fragment
	var b bytes.Buffer
	for _, p := range parts {
		b.Reset()
		if err := render(&b, p.content); err != nil {
			return nil, fmt.Errorf("page %s: %w", v.page.name, err)
		}
		out = append(out, fragment{p.id, b.String()})
	}
	return out, nil
}

// render writes a component. The data is complete, so that the end of the request need
// not stop it.
func render(b *bytes.Buffer, c templ.Component) error { return c.Render(context.Background(), b) }

// write answers with a page. If it returns an error it has written nothing.
func write(w http.ResponseWriter, status int, page templ.Component) error {
	var b bytes.Buffer
	if err := render(&b, page); err != nil {
		return fmt.Errorf("a page: %w", err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the browser may have disconnected
	return nil
}

// problem answers with an error, with the API's status for it.
func (d *Dashboard) problem(w http.ResponseWriter, r *http.Request, err error) {
	e := api.ErrorOf(err)
	if e.Code == api.CodeInternal {
		d.o.Log.Error("dashboard", "path", r.URL.Path, "err", err)
	}
	api.Unread(w, r)
	if e.Code.Status() == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(int(minEvery/time.Second)))
	}
	c, refused := api.CallerOf(d.o.Access, r)
	if refused != nil {
		c = api.Caller{}
	}
	if err := write(w, e.Code.Status(), problemPage(d.frame("Not done", "", c), e)); err != nil {
		d.o.Log.Error("dashboard", "err", err)
		http.Error(w, "this page could not be rendered", http.StatusInternalServerError)
	}
}

// pager is the position in a long list.
type pager struct {
	From, To, Total int // From 1; 0 if the list is empty
	Before, After   string
}

// paginate returns the part of a list that a page of the query shows.
func paginate[T any](all []T, path string, q query) ([]T, pager) {
	last := max(1, (len(all)+rowsPerPage-1)/rowsPerPage)
	q.page = min(q.page, last)
	from := (q.page - 1) * rowsPerPage
	to := min(from+rowsPerPage, len(all))
	p := pager{From: min(from+1, len(all)), To: to, Total: len(all)}
	link := func(n int) string {
		q.page = n
		return (&url.URL{Path: path, RawQuery: q.values().Encode()}).String()
	}
	here := q.page
	if here > 1 {
		p.Before = link(here - 1)
	}
	if here < last {
		p.After = link(here + 1)
	}
	return slices.Clip(all[from:to]), p
}
