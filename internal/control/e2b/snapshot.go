package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"sort"
	"strings"
	"time"

	"holdfast"
)

// snapshotInfo is a snapshot as the SDKs read it. Its id may be the template of a new sandbox.
type snapshotInfo struct {
	ID    string   `json:"snapshotID"`
	Names []string `json:"names"`
}

// copyable returns a sandbox of which a copy can be made.
func (d *Server) copyable(r *http.Request) (sandbox, error) {
	s, err := d.sandboxes.find(r.Context(), r.PathValue("id"))
	switch {
	case err != nil:
		return s, err
	case s.Paused:
		return s, refuse(http.StatusConflict, "the sandbox %s is paused", s.ID)
	case !d.template(s.Template).Forks:
		return s, refuse(http.StatusBadRequest, "sandboxes of the template %s cannot be copied: it needs fork: allowed, see docs/forking.md", s.Template)
	}
	return s, nil
}

// takeSnapshot copies a sandbox, which goes on.
func (d *Server) takeSnapshot(w http.ResponseWriter, r *http.Request) error {
	q := struct {
		Name   string `json:"name"`
		Memory *bool  `json:"memory"`
	}{}
	if err := read(r, &q); err != nil {
		return err
	}
	if q.Memory != nil && !*q.Memory {
		return notOffered("a snapshot without memory")
	}
	s, err := d.copyable(r)
	if err != nil {
		return err
	}
	name, names := holdfast.SessionKey(newID()), []string{}
	if q.Name != "" {
		name, names = snapshotName(q.Name), []string{q.Name}
	}
	if d.isTemplate(string(name)) {
		return refuse(http.StatusBadRequest, "the name %s is that of a template", name)
	}
	if _, err := d.o.Agent.TakeSnapshot(r.Context(), s.key(), name, 0); err != nil {
		return absent(err, s.ID)
	}
	return write(w, http.StatusCreated, snapshotInfo{string(name), names})
}

// snapshotName returns a client's name for a snapshot, without its tag. If the name is not a
// valid session key, snapshotName returns "snapshot-" and a hash of it.
func snapshotName(text string) holdfast.SessionKey {
	text, _, _ = strings.Cut(text, ":")
	if key, err := holdfast.ParseSessionKey(text); err == nil {
		return key
	}
	hash := sha256.Sum256([]byte(text))
	return holdfast.SessionKey("snapshot-" + hex.EncodeToString(hash[:12]))
}

// absent is err, or the answer about a sandbox whose session does not run.
func absent(err error, id string) error {
	if errors.Is(err, holdfast.ErrNotFound) {
		return unknown(id)
	}
	return err
}

func (d *Server) isTemplate(name string) bool { return name != "" && d.template(name).Name != "" }

// listSnapshots lists the snapshots of the server's templates by name, a page at a time.
func (d *Server) listSnapshots(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	limit, from, err := page(q)
	if err != nil {
		return err
	}
	all, err := d.o.Agent.Snapshots(r.Context())
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(s holdfast.MemorySnapshot) bool {
		return !d.isTemplate(s.Template) || string(s.Name) <= from ||
			q.Get("name") != "" && s.Name != snapshotName(q.Get("name")) || q.Get("sandboxID") != "" && string(s.Key) != q.Get("sandboxID")
	})
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	if len(all) > limit {
		all = all[:limit]
		turnAfter(w, string(all[limit-1].Name))
	}
	list := make([]snapshotInfo, 0, len(all))
	for _, s := range all {
		list = append(list, snapshotInfo{string(s.Name), []string{string(s.Name)}})
	}
	return write(w, http.StatusOK, list)
}

// snapshot returns a snapshot of one of the server's templates. holdfast.ErrNotFound.
func (d *Server) snapshot(ctx context.Context, name holdfast.SessionKey) (holdfast.MemorySnapshot, error) {
	all, err := d.o.Agent.Snapshots(ctx)
	if err != nil {
		return holdfast.MemorySnapshot{}, err
	}
	for _, s := range all {
		if s.Name == name && d.isTemplate(s.Template) {
			return s, nil
		}
	}
	return holdfast.MemorySnapshot{}, &missing{refuse(http.StatusNotFound, "there is no template and no snapshot %q", name)}
}

// removeSnapshot removes a snapshot. The SDKs remove it as a template.
func (d *Server) removeSnapshot(w http.ResponseWriter, r *http.Request) error {
	if name, _, _ := strings.Cut(r.PathValue("id"), ":"); d.isTemplate(name) {
		return notOffered("removing templates")
	}
	s, err := d.snapshot(r.Context(), snapshotName(r.PathValue("id")))
	if err == nil {
		err = d.o.Agent.RemoveSnapshot(r.Context(), s.Name)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// forkResult is a fork, or why it does not run.
type forkResult struct {
	Sandbox *shown   `json:"sandbox,omitempty"`
	Error   *problem `json:"error,omitempty"`
}

// fork starts sandboxes from a copy of one, which goes on. They have its metadata, its
// variables and what happens at their end, and tokens of their own.
func (d *Server) fork(w http.ResponseWriter, r *http.Request) error {
	q := struct {
		Timeout int64 `json:"timeout"`
		Count   int   `json:"count"`
	}{15, 1}
	if err := read(r, &q); err != nil {
		return err
	}
	length, err := timeout(q.Timeout)
	if err != nil {
		return err
	}
	if q.Count < 1 || q.Count > holdfast.MaxForks {
		return refuse(http.StatusBadRequest, "count is %d, from 1 to %d are allowed", q.Count, holdfast.MaxForks)
	}
	parent, err := d.copyable(r)
	if err != nil {
		return err
	}
	children, err := d.childrenOf(r.Context(), parent, q.Count, length)
	defer func() { d.forget(r.Context(), children) }() // those that do not run
	if err != nil {
		return err
	}
	keys := make([]holdfast.SessionKey, 0, len(children))
	for _, c := range children {
		keys = append(keys, c.key())
	}
	report, err := d.o.Agent.ForkSession(r.Context(), parent.key(), keys)
	if err != nil {
		return absent(err, parent.ID)
	}
	results := make([]forkResult, 0, q.Count)
	for _, c := range report.Children {
		i := slices.IndexFunc(children, func(s sandbox) bool { return s.key() == c.Key })
		if c.Error == "" && i >= 0 {
			s, err := d.begin(r.Context(), children[i].ID, length)
			if err == nil {
				v := d.show(s)
				children, results = slices.Delete(children, i, i+1), append(results, forkResult{Sandbox: &v})
				continue
			}
			c.Error = err.Error()
		}
		results = append(results, forkResult{Error: &problem{Code: http.StatusInternalServerError, Message: c.Error}})
	}
	return write(w, http.StatusCreated, results)
}

// childrenOf stores new sandboxes with the settings of another one.
func (d *Server) childrenOf(ctx context.Context, parent sandbox, count int, length time.Duration) (children []sandbox, err error) {
	for range count {
		c := sandbox{
			ID: newID(), Template: parent.Template, Metadata: parent.Metadata, Env: parent.Env, Started: time.Now().UTC(),
			Pause: parent.Pause, Resume: parent.Resume, Token: newID(),
		}
		if parent.Traffic != "" {
			c.Traffic = newID()
		}
		c.Ends = c.Started.Add(forgetAfter + length)
		if err := d.sandboxes.add(ctx, c); err != nil {
			return children, err
		}
		children = append(children, c)
	}
	return children, nil
}
