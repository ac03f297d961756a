package e2b

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
)

// logLine is a line of a container's output.
type logLine struct {
	Timestamp time.Time `json:"timestamp"`
	Line      string    `json:"line"`
}

// logEntry is a logLine in the newer form.
type logEntry struct {
	Timestamp time.Time         `json:"timestamp"`
	Message   string            `json:"message"`
	Level     string            `json:"level"` // always info
	Fields    map[string]string `json:"fields"`
}

// logQuery selects lines.
type logQuery struct {
	from    time.Time
	back    bool // from there backward
	limit   int
	search  string
	nothing bool // lines have the level info, and a higher one is wanted
}

func parseLogQuery(q url.Values) (out logQuery, err error) {
	out.limit = maxLogLines
	if text := q.Get("limit"); text != "" {
		if out.limit, err = strconv.Atoi(text); err != nil || out.limit < 0 {
			return out, notValid(q, "limit")
		}
		out.limit = min(out.limit, maxLogLines)
	}
	switch q.Get("direction") {
	case "", "forward":
	case "backward":
		out.back, out.from = true, time.Now()
	default:
		return out, notValid(q, "direction")
	}
	for _, name := range []string{"start", "cursor"} { // of the older form, and of the newer one
		if text := q.Get(name); text != "" {
			ms, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return out, notValid(q, name)
			}
			out.from = time.UnixMilli(ms)
		}
	}
	level := q.Get("level")
	if level != "" && !slices.Contains([]string{"debug", "info", "warn", "error"}, level) {
		return out, notValid(q, "level")
	}
	out.nothing, out.search = level == "warn" || level == "error", q.Get("search")
	return out, nil
}

// logs answers with lines of the output of a sandbox's container.
func (d *Server) logs(w http.ResponseWriter, r *http.Request) error {
	q, err := parseLogQuery(r.URL.Query())
	if err != nil {
		return err
	}
	s, err := d.sandboxes.find(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	text := &tail{}
	if !s.Paused && !q.nothing {
		err = d.o.Agent.Logs(r.Context(), s.key(), api.LogOptions{Tail: logTail, Timestamps: true}, text)
	}
	if errors.Is(err, holdfast.ErrNotFound) {
		return unknown(s.ID)
	}
	if err != nil {
		return err
	}
	lines, entries := q.pick(text.String()), []logEntry{}
	for _, l := range lines {
		entries = append(entries, logEntry{l.Timestamp, l.Line, "info", map[string]string{}})
	}
	if strings.HasPrefix(r.URL.Path, "/v2/") {
		return write(w, http.StatusOK, map[string]any{"logs": entries})
	}
	return write(w, http.StatusOK, map[string]any{"logs": lines, "logEntries": entries})
}

// pick returns the lines that are wanted, in their order: of a query backward the newest
// first.
func (q logQuery) pick(text string) []logLine {
	all := []logLine{}
	for line := range strings.Lines(text) {
		stamp, rest, _ := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil || !strings.Contains(rest, q.search) || q.back && at.After(q.from) || !q.back && at.Before(q.from) {
			continue
		}
		all = append(all, logLine{at, strings.ToValidUTF8(rest, "�")})
	}
	if q.back {
		slices.Reverse(all)
	}
	return all[:min(q.limit, len(all))]
}

// tail keeps the last bytes that are written to it.
type tail struct{ bytes.Buffer }

var _ io.Writer = (*tail)(nil)

func (t *tail) Write(p []byte) (int, error) {
	if over := t.Len() + len(p) - maxLogBytes; over > 0 {
		t.Next(over)
	}
	return t.Buffer.Write(p)
}
