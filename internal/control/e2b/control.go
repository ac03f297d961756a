package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"holdfast"
)

// controlRoutes is the control API.
func (d *Server) controlRoutes() http.Handler {
	mux := http.NewServeMux()
	route := func(pattern string, h func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			err := d.admit(r)
			if err == nil {
				r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
				err = h(w, r)
			}
			if err != nil {
				fail(w, err)
			}
		})
	}
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	route("POST /sandboxes", func(w http.ResponseWriter, r *http.Request) error { return d.create(w, r, 15*time.Second) })
	route("POST /v2/sandboxes", func(w http.ResponseWriter, r *http.Request) error { return d.create(w, r, resumeTimeout) })
	route("GET /v2/sandboxes", d.list)
	route("GET /sandboxes", d.list)
	route("GET /sandboxes/{id}", d.info)
	route("DELETE /sandboxes/{id}", d.remove)
	route("POST /sandboxes/{id}/timeout", d.setTimeout)
	route("POST /sandboxes/{id}/refreshes", d.refresh)
	route("POST /sandboxes/{id}/connect", d.connect)
	route("POST /v2/sandboxes/{id}/connect", d.connect)
	route("POST /sandboxes/{id}/resume", d.connect)
	route("POST /sandboxes/{id}/pause", d.suspend)
	route("GET /sandboxes/metrics", d.manyMetrics)
	route("GET /sandboxes/{id}/metrics", d.metrics)
	route("GET /sandboxes/{id}/logs", d.logs)
	route("GET /v2/sandboxes/{id}/logs", d.logs)
	route("POST /sandboxes/{id}/fork", d.fork)
	route("POST /sandboxes/{id}/snapshots", d.takeSnapshot)
	route("GET /snapshots", d.listSnapshots)
	route("DELETE /templates/{id}", d.removeSnapshot)
	d.webhookRoutes(route)
	route("/", d.refused)
	return mux
}

// refused answers what is not offered.
func (d *Server) refused(_ http.ResponseWriter, r *http.Request) error {
	for _, x := range []struct{ part, what string }{
		{"/network", "rules for networks"},
		{"/templates", "building templates"}, {"/volumes", "volumes"}, {"/secrets", "secrets"}, {"/teams", "teams"}, {"/api-keys", "changing API keys"}, {"/access-tokens", "access tokens"},
	} {
		if strings.Contains(r.URL.Path+"/", x.part+"/") {
			return notOffered(x.what)
		}
	}
	return notOffered("the call " + r.Method + " " + r.URL.Path)
}

// admit checks the API key of a request.
func (d *Server) admit(r *http.Request) error {
	if d.keys.Owner(r.Header.Get("X-API-Key")) == "" {
		return refuse(http.StatusUnauthorized, "the API key is missing or wrong")
	}
	return nil
}

// read reads the body of a request. An empty one leaves v as it is.
func read(r *http.Request, v any) error {
	err := json.NewDecoder(r.Body).Decode(v)
	if err != nil && !errors.Is(err, io.EOF) {
		return refuse(http.StatusBadRequest, "the request is no valid JSON: %v", err)
	}
	return nil
}

func write(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
	return nil
}

// timeout returns seconds as a time.
func timeout(seconds int64) (time.Duration, error) {
	if seconds < 0 || seconds > int64(maxTimeout/time.Second) {
		return 0, refuse(http.StatusBadRequest, "the timeout is %d s, from 0 to %d s are allowed", seconds, int64(maxTimeout/time.Second))
	}
	return time.Duration(seconds) * time.Second, nil
}

// timeoutRequest asks for a time until the end of a sandbox.
type timeoutRequest struct {
	Timeout  *int64 `json:"timeout"`
	Duration *int64 `json:"duration"` // of refreshes
	Memory   *bool  `json:"memory"`   // of connect; false resumes without it
}

// extend reads a time until the end of a sandbox, and changes its end. Without later the
// end may also be earlier than before.
func (d *Server) extend(w http.ResponseWriter, r *http.Request, later bool) error {
	q := timeoutRequest{}
	if err := read(r, &q); err != nil {
		return err
	}
	if q.Timeout == nil {
		q.Timeout = q.Duration
	}
	if q.Timeout == nil {
		return refuse(http.StatusBadRequest, "the timeout is missing")
	}
	length, err := timeout(*q.Timeout)
	if err != nil {
		return err
	}
	s, err := d.sandboxes.find(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	if s.Paused {
		return unknown(s.ID) // the SDKs take it for one that is not running
	}
	end := time.Now().Add(length)
	if s, err = d.prolong(r.Context(), s.ID, end, later); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// prolong changes the end of a sandbox, with later only to a later one.
func (d *Server) prolong(ctx context.Context, id string, end time.Time, later bool) (sandbox, error) {
	changed := false
	s, err := d.sandboxes.change(ctx, id, func(s *sandbox) {
		if changed = !later || end.After(s.Ends); changed {
			s.Ends = end
		}
	})
	if err == nil && changed {
		d.emit(isUpdated, s)
	}
	return s, err
}

func (d *Server) setTimeout(w http.ResponseWriter, r *http.Request) error {
	return d.extend(w, r, false)
}

func (d *Server) refresh(w http.ResponseWriter, r *http.Request) error { return d.extend(w, r, true) }

// remove kills a sandbox.
func (d *Server) remove(w http.ResponseWriter, r *http.Request) error {
	s, err := d.sandboxes.find(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := d.kill(context.WithoutCancel(r.Context()), s); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// suspend pauses a sandbox.
func (d *Server) suspend(w http.ResponseWriter, r *http.Request) error {
	q := struct {
		Memory *bool `json:"memory"`
	}{}
	if err := read(r, &q); err != nil {
		return err
	}
	s, err := d.sandboxes.find(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	switch t := d.template(s.Template); {
	case s.Paused:
		return refuse(http.StatusConflict, "the sandbox %s is paused already", s.ID)
	case q.Memory != nil && !*q.Memory:
		return notOffered("a pause without memory")
	case !t.Pauses:
		return cannotPause(t)
	}
	err = d.pause(context.WithoutCancel(r.Context()), s)
	if errors.Is(err, holdfast.ErrNotFound) {
		return unknown(s.ID)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func cannotPause(t Template) error {
	return refuse(http.StatusBadRequest, "sandboxes of the template %s cannot be paused: it needs handover: memory, see docs/moving.md", t.Name)
}

// connect returns a sandbox to another client, and resumes it if it is paused. Its time
// is only extended.
func (d *Server) connect(w http.ResponseWriter, r *http.Request) error {
	q := timeoutRequest{}
	if err := read(r, &q); err != nil {
		return err
	}
	if q.Memory != nil && !*q.Memory {
		return refuse(http.StatusBadRequest, "Holdfast does not offer a resume without memory")
	}
	length := resumeTimeout
	if q.Timeout != nil {
		var err error
		if length, err = timeout(*q.Timeout); err != nil {
			return err
		}
	}
	s, err := d.sandboxes.find(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	status := http.StatusOK
	if s.Paused {
		status = http.StatusCreated
		s, err = d.resume(r.Context(), s, length)
	} else if _, err = d.o.Agent.Session(r.Context(), s.key()); err == nil {
		s, err = d.prolong(r.Context(), s.ID, time.Now().Add(length), true)
	}
	if errors.Is(err, holdfast.ErrNotFound) {
		return unknown(r.PathValue("id"))
	}
	if err != nil {
		return err
	}
	return write(w, status, d.show(s))
}
