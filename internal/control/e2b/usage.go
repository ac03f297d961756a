package e2b

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"holdfast"
)

// metricEntry is what a sandbox uses at one moment. The disk is not measured.
type metricEntry struct {
	Timestamp time.Time `json:"timestamp"` // deprecated, and required
	Unix      int64     `json:"timestampUnix"`
	CPUs      int       `json:"cpuCount"`
	CPU       float64   `json:"cpuUsedPct"` // of all CPUs, since the entry before
	Memory    int64     `json:"memUsed"`    // bytes
	Total     int64     `json:"memTotal"`
	Cache     int64     `json:"memCache"` // of the last entry; 0 in the others
	DiskUsed  int64     `json:"diskUsed"`
	DiskTotal int64     `json:"diskTotal"`
}

// usage returns what a sandbox has used, the oldest entry first. A paused one has none.
func (d *Server) usage(ctx context.Context, s sandbox) ([]metricEntry, error) {
	out := []metricEntry{}
	if s.Paused {
		return out, nil
	}
	u, err := d.o.Agent.SessionUsage(ctx, s.key())
	if errors.Is(err, holdfast.ErrNotFound) {
		return nil, unknown(s.ID)
	}
	if err != nil {
		return nil, err
	}
	cpus, total := d.size(s)
	if u.MemoryLimit > 0 {
		total = u.MemoryLimit
	}
	for i := 1; i < len(u.Samples); i++ {
		before, now := u.Samples[i-1], u.Samples[i]
		m := metricEntry{Timestamp: now.At, Unix: now.At.Unix(), CPUs: cpus, Memory: now.Memory, Total: total}
		if took := now.At.Sub(before.At); took > 0 && now.CPU > before.CPU {
			m.CPU = min(100, 100*float64(now.CPU-before.CPU)/float64(took)/float64(cpus))
		}
		if i == len(u.Samples)-1 {
			m.Cache = u.PageCache
		}
		out = append(out, m)
	}
	return out, nil
}

// metrics answers with what a sandbox has used, in a range of time if the request has one.
func (d *Server) metrics(w http.ResponseWriter, r *http.Request) error {
	from, to, err := interval(r.URL.Query())
	if err != nil {
		return err
	}
	s, err := d.sandboxes.find(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	all, err := d.usage(r.Context(), s)
	if err != nil {
		return err
	}
	some := []metricEntry{}
	for _, m := range all {
		if m.Unix >= from && m.Unix <= to {
			some = append(some, m)
		}
	}
	return write(w, http.StatusOK, some)
}

// interval returns the range of time of a request in Unix seconds, both ends within it.
func interval(q url.Values) (from, to int64, err error) {
	from, to = 0, 1<<62
	for name, n := range map[string]*int64{"start": &from, "end": &to} {
		if !q.Has(name) {
			continue
		}
		if *n, err = strconv.ParseInt(q.Get(name), 10, 64); err != nil || *n < 0 {
			return 0, 0, notValid(q, name)
		}
	}
	if from > to {
		return 0, 0, refuse(http.StatusBadRequest, "start is after end")
	}
	return from, to, nil
}

// manyMetrics answers with what each of some sandboxes uses. Those that do not run are left
// out.
func (d *Server) manyMetrics(w http.ResponseWriter, r *http.Request) error {
	ids := strings.Split(strings.Join(r.URL.Query()["sandbox_ids"], ","), ",")
	if len(ids) > maxPage || ids[0] == "" {
		return refuse(http.StatusBadRequest, "sandbox_ids has %d ids, from 1 to %d are allowed", len(ids), maxPage)
	}
	last := map[string]metricEntry{}
	for _, id := range ids {
		s, err := d.sandboxes.find(r.Context(), id)
		var all []metricEntry
		if err == nil {
			all, err = d.usage(r.Context(), s)
		}
		if err != nil && !errors.Is(err, holdfast.ErrNotFound) {
			return err
		}
		if len(all) > 0 {
			last[id] = all[len(all)-1]
		}
	}
	return write(w, http.StatusOK, map[string]any{"sandboxes": last})
}
