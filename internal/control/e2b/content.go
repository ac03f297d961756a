package e2b

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"time"

	"holdfast"
)

// enterFiles returns the sandbox of a request for the content of a file. The request has
// the sandbox's token, or a signature of it for this path, user and kind of access.
func (d *Server) enterFiles(r *http.Request, access string) (sandbox, error) {
	s, err := d.enter(r)
	if err != nil {
		return s, err
	}
	q := r.URL.Query()
	given, want := r.Header.Get("X-Access-Token"), s.Token
	if q.Has("signature") {
		if err := inTime(q); err != nil {
			return s, err
		}
		given, want = q.Get("signature"), signature(s.Token, access, q)
	}
	if !same(given, want) {
		return s, refuse(http.StatusUnauthorized, "the access token or the signature is missing or wrong")
	}
	return d.running(r.Context(), s.ID)
}

// inTime refuses a signature whose time is over.
func inTime(q url.Values) error {
	text := q.Get("signature_expiration")
	if text == "" {
		return nil
	}
	at, err := strconv.ParseInt(text, 10, 64)
	if err != nil || time.Now().Unix() > at {
		return refuse(http.StatusUnauthorized, "signature is already expired")
	}
	return nil
}

// signature is that of the SDKs: the SHA-256 of what it is for and of the token.
func signature(token, access string, q url.Values) string {
	text := q.Get("path") + ":" + access + ":" + q.Get("username") + ":" + token
	if at := q.Get("signature_expiration"); at != "" {
		text += ":" + at
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// owner returns the user of a request about files: of the query, or of the header.
func owner(r *http.Request) string {
	if name := r.URL.Query().Get("username"); name != "" {
		return name
	}
	return userOf(r.Header)
}

// download answers with the content of a file.
func (d *Server) download(w http.ResponseWriter, r *http.Request) {
	s, err := d.enterFiles(r, "read")
	var p string
	if err == nil {
		_, p, err = d.at(r.Context(), s, owner(r), r.URL.Query().Get("path"))
	}
	if err != nil {
		fail(w, err)
		return
	}
	f, err := d.o.Agent.Stat(r.Context(), s.key(), p, true)
	if err == nil && f.Type == holdfast.Directory {
		err = refuse(http.StatusBadRequest, "path '%s' is a directory", p)
	}
	out := &body{w: w, name: path.Base(p)}
	if err == nil {
		err = d.o.Agent.ReadFile(r.Context(), s.key(), p, 0, out)
	}
	switch {
	case err == nil:
		out.begin()
	case out.begun:
		panic(http.ErrAbortHandler) // the client sees that the content is incomplete
	default:
		fail(w, d.missingFile(r.Context(), s, p, err))
	}
}

// body is the answer with a file. It begins with the first byte.
type body struct {
	w     http.ResponseWriter
	name  string
	begun bool
}

func (b *body) begin() {
	if b.begun {
		return
	}
	b.begun = true
	h := b.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": b.name}))
	b.w.WriteHeader(http.StatusOK)
}

func (b *body) Write(p []byte) (int, error) {
	b.begin()
	return b.w.Write(p)
}

// uploaded is a file that was written.
type uploaded struct {
	Name string `json:"name"`
	Type string `json:"type"` // file
	Path string `json:"path"`
	// Metadata is absent without any, as in entries.
	Metadata map[string]string `json:"metadata,omitempty"`
}

// upload writes the files of a request: one as it is, or those of a form.
func (d *Server) upload(w http.ResponseWriter, r *http.Request) {
	s, err := d.enterFiles(r, "write")
	if err != nil {
		fail(w, err)
		return
	}
	done, err := d.store(r, s)
	if err != nil {
		fail(w, err)
		return
	}
	_ = write(w, http.StatusOK, done)
}

func (d *Server) store(r *http.Request, s sandbox) ([]uploaded, error) {
	a, err := d.account(r.Context(), s, owner(r))
	if err != nil {
		return nil, err
	}
	o := holdfast.WriteFile{UID: &a.uid, GID: &a.gid}
	if o.Attributes, err = attributes(r.Header); err != nil {
		return nil, err
	}
	in, err := decoded(r)
	if err != nil {
		return nil, err
	}
	media, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	given := r.URL.Query().Get("path")
	switch {
	case err != nil:
		return nil, refuse(http.StatusBadRequest, "the content type is missing or not valid")
	case media == "multipart/form-data":
		return d.storeForm(r.Context(), s, a, o, multipart.NewReader(in, params["boundary"]), given)
	case given == "":
		return nil, refuse(http.StatusBadRequest, "the path is missing")
	}
	one, err := d.put(r.Context(), s, a, o, given, in)
	return []uploaded{one}, err
}

// decoded is the body of a request without its encoding.
func decoded(r *http.Request) (io.Reader, error) {
	switch r.Header.Get("Content-Encoding") {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		in, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "the body is no gzip: %v", err)
		}
		return in, nil
	}
	return nil, refuse(http.StatusBadRequest, "the encoding of the body is neither identity nor gzip")
}

// storeForm writes the files of a form, each while it arrives. given is the path of the
// only file, or "": then each has its path as its file name.
func (d *Server) storeForm(ctx context.Context, s sandbox, a account, o holdfast.WriteFile, form *multipart.Reader, given string) ([]uploaded, error) {
	done := []uploaded{}
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return done, nil
		}
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "the form is not valid: %v", err)
		}
		if part.FormName() != "file" {
			continue
		}
		p := given
		if p == "" {
			// FileName would cut the directories off.
			_, params, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
			p = params["filename"]
		} else if len(done) > 0 {
			return nil, refuse(http.StatusBadRequest, "the form has more than one file for one path")
		}
		if p == "" {
			return nil, refuse(http.StatusBadRequest, "a file of the form has no path")
		}
		one, err := d.put(ctx, s, a, o, p, part)
		if err != nil {
			return nil, err
		}
		done = append(done, one)
	}
}

// put writes a file, and makes the directories above it.
func (d *Server) put(ctx context.Context, s sandbox, a account, o holdfast.WriteFile, p string, r io.Reader) (uploaded, error) {
	p = path.Clean(join(a.home, p))
	if dir := path.Dir(p); dir != "/" {
		if err := d.makeDir(ctx, s, a, dir); err != nil {
			return uploaded{}, fmt.Errorf("making the directory: %w", err)
		}
	}
	f, err := d.o.Agent.WriteFile(ctx, s.key(), p, o, r)
	if err != nil {
		return uploaded{}, d.missingFile(ctx, s, p, err)
	}
	return uploaded{f.Name, "file", f.Path, metadataOf(f)}, nil
}
