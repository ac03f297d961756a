package e2b

import (
	"cmp"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
)

// shown is a sandbox as its creator gets it.
type shown struct {
	TemplateID         string  `json:"templateID"`
	Alias              string  `json:"alias"`
	SandboxID          string  `json:"sandboxID"`
	ClientID           string  `json:"clientID"` // deprecated, and required
	EnvdVersion        string  `json:"envdVersion"`
	EnvdAccessToken    string  `json:"envdAccessToken"`
	TrafficAccessToken *string `json:"trafficAccessToken,omitempty"`
	Domain             string  `json:"domain"`
}

func (d *Server) show(s sandbox) shown {
	v := shown{TemplateID: s.Template, Alias: s.Template, SandboxID: s.ID, ClientID: "holdfast", EnvdVersion: envdVersion, EnvdAccessToken: s.Token, Domain: d.o.Domain}
	if s.Traffic != "" {
		v.TrafficAccessToken = &s.Traffic
	}
	return v
}

// listed is a sandbox in a list.
type listed struct {
	TemplateID  string            `json:"templateID"`
	Alias       string            `json:"alias"`
	SandboxID   string            `json:"sandboxID"`
	ClientID    string            `json:"clientID"`
	StartedAt   time.Time         `json:"startedAt"`
	EndAt       time.Time         `json:"endAt"`
	CPUCount    int               `json:"cpuCount"`
	MemoryMB    int64             `json:"memoryMB"`
	DiskSizeMB  int64             `json:"diskSizeMB"` // 0: there is no limit
	Metadata    map[string]string `json:"metadata"`
	State       string            `json:"state"` // running or paused
	EnvdVersion string            `json:"envdVersion"`
}

// detail is a sandbox with all that is known of it.
type detail struct {
	listed
	EnvdAccessToken string    `json:"envdAccessToken"`
	Domain          string    `json:"domain"`
	Internet        bool      `json:"allowInternetAccess"`
	Lifecycle       lifecycle `json:"lifecycle"`
	Network         *exposure `json:"network,omitempty"`
}

type lifecycle struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"` // kill or pause
}

type exposure struct {
	AllowPublicTraffic bool `json:"allowPublicTraffic"`
}

func (d *Server) entry(s sandbox) listed {
	cpus, memory := d.size(s)
	v := listed{
		TemplateID: s.Template, Alias: s.Template, SandboxID: s.ID, ClientID: "holdfast", StartedAt: s.Started, EndAt: s.Ends,
		CPUCount: cpus, MemoryMB: memory >> 20, Metadata: s.Metadata, State: "running", EnvdVersion: envdVersion,
	}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	if s.Paused {
		v.State = "paused"
	}
	return v
}

// size returns what a sandbox may use at most: its template's limits, or this host's size.
func (d *Server) size(s sandbox) (cpus int, memory int64) {
	t := d.template(s.Template)
	cpus, memory = max(1, int(t.CPUs+0.999)), t.Memory
	if t.CPUs == 0 {
		cpus = runtime.NumCPU()
	}
	var host unix.Sysinfo_t
	if t.Memory == 0 && unix.Sysinfo(&host) == nil {
		memory = int64(host.Totalram * uint64(host.Unit))
	}
	return cpus, memory
}

// info describes a sandbox.
func (d *Server) info(w http.ResponseWriter, r *http.Request) error {
	s, err := d.sandboxes.find(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	if _, err := d.o.Agent.Session(r.Context(), s.key()); errors.Is(err, holdfast.ErrNotFound) {
		return unknown(s.ID)
	} else if err != nil {
		return err
	}
	v := detail{listed: d.entry(s), EnvdAccessToken: s.Token, Domain: d.o.Domain, Internet: true, Lifecycle: lifecycle{s.Resume, "kill"}}
	if s.Pause {
		v.Lifecycle.OnTimeout = "pause"
	}
	if s.Traffic != "" {
		v.Network = &exposure{}
	}
	return write(w, http.StatusOK, v)
}

// query selects sandboxes.
type query struct {
	metadata url.Values
	states   []string
	template string
	after    time.Time
	oldest   bool // first
	limit    int
	from     string // token
}

func parseQuery(q url.Values) (out query, err error) {
	if out.metadata, err = url.ParseQuery(q.Get("metadata")); err != nil {
		return out, notValid(q, "metadata")
	}
	for _, list := range q["state"] {
		for s := range strings.SplitSeq(list, ",") {
			if s != "running" && s != "paused" {
				return out, notValid(q, "state")
			}
			out.states = append(out.states, s)
		}
	}
	if text := q.Get("startedAfter"); text != "" {
		if out.after, err = time.Parse(time.RFC3339, text); err != nil {
			return out, notValid(q, "startedAfter")
		}
	}
	if out.limit, out.from, err = page(q); err != nil {
		return out, err
	}
	switch q.Get("order") {
	case "", "desc":
	case "asc":
		out.oldest = true
	default:
		return out, notValid(q, "order")
	}
	out.template = q.Get("template")
	return out, nil
}

// page returns how many entries a page of a list has, and the position that it comes after.
func page(q url.Values) (limit int, from string, err error) {
	limit = maxPage
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 {
			return 0, "", notValid(q, "limit")
		}
	}
	token, err := base64.RawURLEncoding.DecodeString(q.Get("nextToken"))
	if err != nil {
		return 0, "", notValid(q, "nextToken")
	}
	return min(limit, maxPage), string(token), nil
}

// turnAfter tells the client that entries follow the one at a position.
func turnAfter(w http.ResponseWriter, position string) {
	w.Header().Set("X-Next-Token", base64.RawURLEncoding.EncodeToString([]byte(position)))
}

// wants reports whether a sandbox is selected.
func (q query) wants(s sandbox) bool {
	state := "running"
	if s.Paused {
		state = "paused"
	}
	for name, values := range q.metadata {
		if got, ok := s.Metadata[name]; !ok || !slices.Contains(values, got) {
			return false
		}
	}
	return (len(q.states) == 0 || slices.Contains(q.states, state)) && (q.template == "" || q.template == s.Template) && !s.Started.Before(q.after)
}

// position is where a sandbox is in the order of the list.
func position(s sandbox) string { return s.Started.Format("2006-01-02T15:04:05.000000000Z") + s.ID }

// list lists the sandboxes that run or are paused, a page at a time.
func (d *Server) list(w http.ResponseWriter, r *http.Request) error {
	q, err := parseQuery(r.URL.Query())
	if err != nil {
		return err
	}
	if r.URL.Path == "/sandboxes" && len(q.states) == 0 {
		q.states = []string{"running"}
	}
	if err := d.sandboxes.read(r.Context()); err != nil {
		return err
	}
	states, err := d.states(r.Context())
	if err != nil {
		return err
	}
	all := slices.DeleteFunc(d.sandboxes.list(), func(s sandbox) bool { return states[s.ID] == "" || !q.wants(s) })
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		c := cmp.Compare(position(a), position(b))
		if !q.oldest {
			c = -c
		}
		return c < 0
	})
	entries := []listed{}
	for _, s := range all {
		at := position(s)
		if q.from != "" && (q.oldest && at <= q.from || !q.oldest && at >= q.from) {
			continue
		}
		if len(entries) == q.limit {
			last := entries[len(entries)-1]
			turnAfter(w, position(sandbox{Started: last.StartedAt, ID: last.SandboxID}))
			break
		}
		entries = append(entries, d.entry(s))
	}
	return write(w, http.StatusOK, entries)
}
