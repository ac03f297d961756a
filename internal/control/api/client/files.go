package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"holdfast"
	"holdfast/internal/control/api"
)

// Stat describes a file of a session, with follow the one that a link leads to.
func (c *Client) Stat(ctx context.Context, key holdfast.SessionKey, path string, follow bool) (holdfast.File, error) {
	q := url.Values{"path": {path}, "follow": {strconv.FormatBool(follow)}}
	return get[holdfast.File](ctx, c, filesPath(key, "/stat", q))
}

// ListFiles lists a directory by name, at most limit entries; 0 is as many as the agent
// returns.
func (c *Client) ListFiles(ctx context.Context, key holdfast.SessionKey, path string, limit int) (api.FileList, error) {
	return get[api.FileList](ctx, c, filesPath(key, "/list", url.Values{"path": {path}, "limit": {strconv.Itoa(limit)}}))
}

// ReadFile copies a file to w, from an offset on.
func (c *Client) ReadFile(ctx context.Context, key holdfast.SessionKey, path string, from int64, w io.Writer) error {
	r, err := c.request(ctx, http.MethodGet, filesPath(key, "", url.Values{"path": {path}}), nil)
	if err != nil {
		return err
	}
	if from > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	resp, err := c.send(r)
	if err != nil {
		return err
	}
	return c.copyBody(ctx, resp, w)
}

// WriteFile writes all of r to a file. If the agent ends, the file is as before.
func (c *Client) WriteFile(ctx context.Context, key holdfast.SessionKey, path string, o holdfast.WriteFile, r io.Reader) (out holdfast.File, err error) {
	q := url.Values{"path": {path}}
	if o.Mode != nil {
		q.Set("mode", strconv.FormatUint(uint64(*o.Mode), 8))
	}
	for name, id := range map[string]*int{"uid": o.UID, "gid": o.GID} {
		if id != nil {
			q.Set(name, strconv.Itoa(*id))
		}
	}
	if len(o.Attributes) > 0 {
		pairs := url.Values{}
		for name, value := range o.Attributes {
			pairs.Set(name, value)
		}
		q.Set("attributes", pairs.Encode())
	}
	err = c.upload(ctx, filesPath(key, "", q), "application/octet-stream", r, &out)
	return out, err
}

// MakeDir makes a directory.
func (c *Client) MakeDir(ctx context.Context, key holdfast.SessionKey, q api.MakeDirRequest) (holdfast.File, error) {
	return post[holdfast.File](ctx, c, sessionPath(key, "/files/directory"), q)
}

// MoveFile gives a file another path.
func (c *Client) MoveFile(ctx context.Context, key holdfast.SessionKey, q api.MoveFileRequest) error {
	return c.ask(ctx, http.MethodPost, sessionPath(key, "/files/move"), q, nil)
}

// RemoveFile removes a file or an empty directory, with recursive any directory.
func (c *Client) RemoveFile(ctx context.Context, key holdfast.SessionKey, path string, recursive bool) error {
	q := url.Values{"path": {path}, "recursive": {strconv.FormatBool(recursive)}}
	return c.ask(ctx, http.MethodDelete, filesPath(key, "", q), nil, nil)
}

// PackFiles copies a file with its tree to w, as a tar archive.
func (c *Client) PackFiles(ctx context.Context, key holdfast.SessionKey, path string, w io.Writer) error {
	resp, err := c.open(ctx, http.MethodGet, filesPath(key, "/archive", url.Values{"path": {path}}), nil)
	if err != nil {
		return err
	}
	return c.copyBody(ctx, resp, w)
}

// UnpackFiles makes the files of a tar archive below a directory.
func (c *Client) UnpackFiles(ctx context.Context, key holdfast.SessionKey, path string, o holdfast.UnpackFiles, r io.Reader) (out holdfast.Unpacked, err error) {
	q := url.Values{"path": {path}, "owners": {strconv.FormatBool(o.Owners)}}
	err = c.upload(ctx, filesPath(key, "/archive", q), "application/x-tar", r, &out)
	return out, err
}

// WatchFiles calls each for every change of a file or of a directory's entries, until each
// returns an error or the file is gone. holdfast.ErrNotFound if the session ends.
func (c *Client) WatchFiles(ctx context.Context, key holdfast.SessionKey, path string, recursive bool, each func(holdfast.FileEvent) error) error {
	q := url.Values{"path": {path}, "recursive": {strconv.FormatBool(recursive)}}
	return lines(ctx, c, http.MethodGet, filesPath(key, "/watch", q), nil, func(e holdfast.FileEvent) (last bool, err error) {
		if e.Kind == holdfast.WatchEnds {
			return true, fmt.Errorf("session %s has ended: %w", key, holdfast.ErrNotFound)
		}
		return e.Kind == holdfast.WatchedIsGone, each(e)
	})
}

func filesPath(key holdfast.SessionKey, rest string, q url.Values) string {
	return sessionPath(key, "/files"+rest+"?"+q.Encode())
}

// copyBody copies an answer to w, and closes it.
func (c *Client) copyBody(ctx context.Context, resp *http.Response, w io.Writer) error {
	defer resp.Body.Close()
	out := &target{w: w}
	if _, err := io.CopyBuffer(out, struct{ io.Reader }{resp.Body}, make([]byte, 256<<10)); err != nil {
		if out.err != nil {
			return out.err
		}
		return c.lost(ctx, err)
	}
	if late := resp.Trailer.Get(api.ErrorTrailer); late != "" {
		e := &api.Error{Code: api.CodeInternal, Message: late}
		_ = json.Unmarshal([]byte(late), e) // otherwise the text as it is
		return e
	}
	return nil
}

// upload sends r as it is. The agent asks for it first, and refuses a bad request before.
func (c *Client) upload(ctx context.Context, path, media string, r io.Reader, answer any) error {
	in := &source{r: r}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, c.base+path, struct{ io.Reader }{in})
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", media)
	req.Header.Set("Expect", "100-continue")
	c.authorize(req)
	resp, err := c.send(req)
	if in.err != nil {
		return in.err
	}
	if err != nil {
		return err
	}
	return c.read(ctx, resp, answer)
}

// source records that the reader failed, not the agent.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}
