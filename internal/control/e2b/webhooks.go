package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// hookPrefix begins the names of the webhooks' notes in the store.
const hookPrefix = "e2b-webhooks/"

// webhook is where events are posted to. It is a note in the store.
type webhook struct {
	ID        string    `json:"id"`
	TeamID    string    `json:"teamId"` // noID
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`
	Enabled   bool      `json:"enabled"`
	URL       string    `json:"url"`
	Events    []string  `json:"events"`
	Secret    string    `json:"signatureSecret,omitempty"` // of the signatures; no answer has it
}

// webhookRequest registers or changes a webhook.
type webhookRequest struct {
	Name    *string  `json:"name"`
	Enabled *bool    `json:"enabled"`
	URL     *string  `json:"url"`
	Events  []string `json:"events"`
	Secret  *string  `json:"signatureSecret"`
}

// apply changes a webhook, and checks the result.
func (q webhookRequest) apply(w *webhook, allowed []netip.Prefix) error {
	for _, x := range []struct {
		from *string
		to   *string
	}{{q.Name, &w.Name}, {q.URL, &w.URL}, {q.Secret, &w.Secret}} {
		if x.from != nil {
			*x.to = *x.from
		}
	}
	if q.Enabled != nil {
		w.Enabled = *q.Enabled
	}
	if q.Events != nil {
		w.Events = q.Events
	}
	for _, kind := range w.Events {
		if !slices.Contains(eventTypes(), kind) {
			return refuse(http.StatusBadRequest, "there are no events %q, only %s", kind, strings.Join(eventTypes(), ", "))
		}
	}
	switch {
	case w.Name == "" || len(w.Name) > 128:
		return refuse(http.StatusBadRequest, "the name has %d bytes, from 1 to 128 are allowed", len(w.Name))
	case len(w.Events) == 0 || len(w.Events) > len(eventTypes()):
		return refuse(http.StatusBadRequest, "events has %d types, from 1 to %d are allowed", len(w.Events), len(eventTypes()))
	case w.Secret == "" || len(w.Secret) > 256:
		return refuse(http.StatusBadRequest, "the signatureSecret has %d bytes, from 1 to 256 are allowed", len(w.Secret))
	}
	return checkURL(w.URL, allowed)
}

// checkURL refuses an address that no event is posted to. A host name is resolved, and
// checked, only when an event is posted.
func checkURL(text string, allowed []netip.Prefix) error {
	u, err := url.Parse(text)
	if err != nil || len(text) > 2048 || u.Hostname() == "" || u.User != nil || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" {
		return refuse(http.StatusBadRequest, "the url is not one of http or https with a host and without a user")
	}
	if u.Scheme == "http" && len(allowed) == 0 {
		return refuse(http.StatusBadRequest, "the url is not one of https")
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		if err := mayPost(ip, u.Scheme == "https", allowed); err != nil {
			return refuse(http.StatusBadRequest, "the url: %v", err)
		}
	}
	return nil
}

// webhookRoutes are the calls about events and webhooks.
func (d *Server) webhookRoutes(route func(string, func(http.ResponseWriter, *http.Request) error)) {
	route("GET /events/sandboxes", d.listEvents)
	route("GET /events/sandboxes/{id}", d.listEvents)
	route("GET /events/webhooks", func(w http.ResponseWriter, r *http.Request) error {
		all, err := readHooks(r.Context(), d.o.Notes)
		shown := []webhook{}
		for _, one := range all {
			one.Secret = ""
			shown = append(shown, one)
		}
		if err != nil {
			return err
		}
		return write(w, http.StatusOK, shown)
	})
	route("POST /events/webhooks", d.addHook)
	route("GET /events/webhooks/{id}", func(w http.ResponseWriter, r *http.Request) error {
		n, err := store.FindNote(r.Context(), d.o.Notes, hookPrefix+r.PathValue("id"))
		return d.answerHook(w, http.StatusOK, n, err)
	})
	route("PATCH /events/webhooks/{id}", d.changeHook)
	route("DELETE /events/webhooks/{id}", func(w http.ResponseWriter, r *http.Request) error {
		n, err := store.FindNote(r.Context(), d.o.Notes, hookPrefix+r.PathValue("id"))
		if err == nil {
			err = d.o.Notes.DropNote(r.Context(), store.Note{Name: n.Name})
		}
		if err == nil {
			d.o.Log.Info("a webhook was removed", "webhook", r.PathValue("id"), "by", d.keys.Owner(r.Header.Get("X-API-Key")))
		}
		return d.answerHook(w, http.StatusOK, n, err)
	})
}

// answerHook answers with a webhook. The events of this node know it from then on.
func (d *Server) answerHook(w http.ResponseWriter, status int, n store.Note, err error) error {
	var one webhook
	if err == nil {
		err = json.Unmarshal(n.Value, &one)
	}
	if errors.Is(err, holdfast.ErrNotFound) {
		return refuse(http.StatusNotFound, "the webhook does not exist")
	}
	if err != nil {
		return err
	}
	one.Secret = ""
	return write(w, status, one)
}

func (d *Server) addHook(w http.ResponseWriter, r *http.Request) error {
	q := webhookRequest{}
	if err := read(r, &q); err != nil {
		return err
	}
	one := webhook{ID: newID(), TeamID: noID, Enabled: true, CreatedAt: time.Now().UTC()}
	if err := q.apply(&one, d.o.WebhookNetworks); err != nil {
		return err
	}
	all, err := readHooks(r.Context(), d.o.Notes)
	if err != nil {
		return err
	}
	if len(all) >= maxHooks {
		return refuse(http.StatusBadRequest, "there are %d webhooks, at most %d are allowed", len(all), maxHooks)
	}
	text, err := json.Marshal(one)
	if err != nil {
		return err
	}
	n, err := d.o.Notes.TakeNote(r.Context(), hookPrefix+one.ID, text, 0)
	if err == nil {
		d.noteHook(r, one)
	}
	return d.answerHook(w, http.StatusCreated, n, err)
}

func (d *Server) changeHook(w http.ResponseWriter, r *http.Request) error {
	q := webhookRequest{}
	if err := read(r, &q); err != nil {
		return err
	}
	one, err := store.ChangeNote(r.Context(), d.o.Notes, hookPrefix+r.PathValue("id"), func(h *webhook) error { return q.apply(h, d.o.WebhookNetworks) })
	text, _ := json.Marshal(one) // cannot fail
	if err == nil {
		d.noteHook(r, one)
	}
	return d.answerHook(w, http.StatusOK, store.Note{Value: text}, err)
}

// noteHook logs a webhook that was registered or changed: the address may tell secrets in
// its path, so only the host is in it.
func (d *Server) noteHook(r *http.Request, one webhook) {
	u, _ := url.Parse(one.URL) // was checked
	d.o.Log.Info("a webhook was set", "webhook", one.ID, "host", u.Host, "enabled", one.Enabled, "by", d.keys.Owner(r.Header.Get("X-API-Key")))
}

// readHooks returns the webhooks in the store.
func readHooks(ctx context.Context, notes store.Notes) (map[string]webhook, error) {
	list, err := notes.ListNotes(ctx, hookPrefix)
	all := map[string]webhook{}
	for _, n := range list {
		var one webhook
		if json.Unmarshal(n.Value, &one) == nil && hookPrefix+one.ID == n.Name {
			all[one.ID] = one
		}
	}
	return all, err
}
