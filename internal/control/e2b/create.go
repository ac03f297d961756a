package e2b

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/platform/store"
)

// newSandbox is a request for a sandbox.
type newSandbox struct {
	TemplateID      string            `json:"templateID"`
	Timeout         *int64            `json:"timeout"` // seconds
	Metadata        map[string]string `json:"metadata"`
	EnvVars         map[string]string `json:"envVars"`
	AutoPause       bool              `json:"autoPause"`
	AutoPauseMemory *bool             `json:"autoPauseMemory"`
	AutoResume      *struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	Internet     *bool    `json:"allow_internet_access"`
	Network      *network `json:"network"`
	IAM          any      `json:"iam"`
	VolumeMounts []any    `json:"volumeMounts"`
}

// network is what a request says about the network of a sandbox.
type network struct {
	AllowPublicTraffic *bool          `json:"allowPublicTraffic"`
	AllowOut           []string       `json:"allowOut"`
	DenyOut            []string       `json:"denyOut"`
	EgressProxy        any            `json:"egressProxy"`
	MaskRequestHost    string         `json:"maskRequestHost"`
	Rules              map[string]any `json:"rules"`
}

// check refuses what is not offered: without an error a sandbox would have rights that its
// creator did not want.
func (q newSandbox) check() error {
	if q.Internet != nil && !*q.Internet {
		return refuse(http.StatusBadRequest, "Holdfast does not offer sandboxes without internet access; the template's network decides")
	}
	if n := q.Network; n != nil && (len(n.AllowOut)+len(n.DenyOut)+len(n.Rules) > 0 || n.EgressProxy != nil || n.MaskRequestHost != "") {
		return refuse(http.StatusBadRequest, "Holdfast does not offer rules for networks; the template's network decides")
	}
	switch {
	case q.IAM != nil:
		return refuse(http.StatusBadRequest, "Holdfast does not offer tokens of workloads")
	case len(q.VolumeMounts) > 0:
		return refuse(http.StatusBadRequest, "Holdfast does not offer volumes; the template has the mounts")
	case q.AutoPause && q.AutoPauseMemory != nil && !*q.AutoPauseMemory:
		return refuse(http.StatusBadRequest, "Holdfast does not offer a pause without memory")
	}
	for name, value := range q.EnvVars {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return refuse(http.StatusBadRequest, "%q is not a name of an environment variable, or its value has a zero byte", name)
		}
	}
	return nil
}

// template returns a template by its name. The SDKs' default name is that of the first
// one, too.
func (d *Server) template(name string) Template {
	i := slices.IndexFunc(d.o.Templates, func(t Template) bool { return t.Name == name })
	if i < 0 && (name == baseTemplate || name == "") {
		i = 0
	}
	if i < 0 {
		return Template{}
	}
	return d.o.Templates[i]
}

// create starts a session for a new sandbox. length is the default of its time.
func (d *Server) create(w http.ResponseWriter, r *http.Request, length time.Duration) error {
	var q newSandbox
	if err := read(r, &q); err != nil {
		return err
	}
	if err := q.check(); err != nil {
		return err
	}
	name, _, _ := strings.Cut(q.TemplateID, ":") // a tag follows
	t, from := d.template(name), holdfast.SessionKey("")
	if t.Name == "" {
		copied, err := d.snapshot(r.Context(), snapshotName(q.TemplateID))
		if err != nil {
			return err
		}
		t, from = d.template(copied.Template), copied.Name
	}
	if q.AutoPause && !t.Pauses {
		return cannotPause(t)
	}
	if q.Timeout != nil {
		var err error
		if length, err = timeout(*q.Timeout); err != nil {
			return err
		}
	}
	s := sandbox{
		ID: idOf(r), Template: t.Name, From: from, Metadata: q.Metadata, Env: q.EnvVars, Started: time.Now().UTC(),
		Pause: q.AutoPause, Resume: q.AutoResume != nil && q.AutoResume.Enabled, Token: newID(),
	}
	if q.Network != nil && q.Network.AllowPublicTraffic != nil && !*q.Network.AllowPublicTraffic {
		s.Traffic = newID()
	}
	s.Ends = s.Started.Add(length)
	err := d.start(r.Context(), &s, length)
	if errors.Is(err, store.ErrTaken) {
		s, err = d.again(r.Context(), s.ID)
	}
	if err != nil {
		return err
	}
	return write(w, http.StatusCreated, d.show(s))
}

// idOf returns the id of a new sandbox. A client that sends a request again with the same
// idempotency key means the same sandbox; without the API key the id cannot be guessed.
func idOf(r *http.Request) string {
	key := r.Header.Get("Idempotency-Key")
	if key == "" {
		return newID()
	}
	mac := hmac.New(sha256.New, []byte(r.Header.Get("X-API-Key")))
	_, _ = mac.Write([]byte(key)) // never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(mac.Sum(nil)))[:26]
}

// again returns a sandbox whose request came before, when it is ready.
func (d *Server) again(ctx context.Context, id string) (sandbox, error) {
	s, err := d.sandboxes.find(ctx, id)
	switch {
	case err != nil || s.Paused:
	case s.From == "":
		_, err = d.o.Agent.StartSession(ctx, s.key(), s.Template)
	default: // a second start from the snapshot would be refused
		if _, err = d.o.Agent.Session(ctx, s.key()); errors.Is(err, holdfast.ErrNotFound) {
			err = refuse(http.StatusServiceUnavailable, "the sandbox %s is being created", id)
		}
	}
	return s, err
}

// start writes the note and starts the session. The sandbox's time begins when it is
// ready: until then the note says when the sandbox is given up.
func (d *Server) start(ctx context.Context, s *sandbox, length time.Duration) (err error) {
	s.Ends = s.Started.Add(forgetAfter + length)
	if err := d.sandboxes.add(ctx, *s); err != nil {
		return err
	}
	if s.From == "" {
		_, err = d.o.Agent.StartSession(ctx, s.key(), s.Template)
	} else {
		_, err = d.o.Agent.StartSessionFrom(ctx, s.key(), s.From)
	}
	if err == nil {
		*s, err = d.begin(ctx, s.ID, length)
	}
	if err != nil {
		d.forget(ctx, []sandbox{*s})
	}
	return err
}

// begin begins the time of a sandbox that is ready.
func (d *Server) begin(ctx context.Context, id string, length time.Duration) (sandbox, error) {
	s, err := d.sandboxes.change(ctx, id, func(s *sandbox) {
		s.Started = time.Now().UTC()
		s.Ends = s.Started.Add(length)
	})
	if err == nil {
		d.emit(isCreated, s)
	}
	return s, err
}

// forget removes sandboxes that could not be started. Their clients do not learn the ids,
// so nothing may be left.
func (d *Server) forget(ctx context.Context, list []sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), suspendLimit)
	defer cancel()
	for _, s := range list {
		if err := d.discard(ctx, &s); err != nil && !errors.Is(err, holdfast.ErrNotFound) {
			d.o.Log.Warn("removing a sandbox that could not be started", "sandbox", s.ID, "err", err)
		}
	}
}
