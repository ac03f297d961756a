package kube

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"holdfast"
)

// Client calls one API server. All methods may be called from any goroutine and
// return when ctx is done. A request other than a watch times out after Limit.
// Errors are a *StatusError, an *UnreachableError or ctx's, wrapped with the
// request. For a missing object they wrap holdfast.ErrNotFound.
type Client struct {
	conf Config
	base *url.URL
	http *http.Client
	opt  Options
}

// Options are the options of a client.
type Options struct {
	Agent string        // of the User-Agent header
	Limit time.Duration // of one request; 0: DefaultLimit
	Idle  time.Duration // of a connection without requests; 0: 90 s
	// Dial connects to the server, or its proxy; nil: as net.Dialer does.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Observe receives each finished request, a watch's when it is answered: its
	// verb (get, list, watch, create, patch, delete) and status, 0 for no answer.
	// It may be nil and must not block.
	Observe func(verb string, code int, took time.Duration)
}

// DefaultLimit is the default time limit of a request.
const DefaultLimit = 30 * time.Second

// maxBody is the maximum size of an answer in bytes: a page of 500 large pods has
// some 10 MB.
const maxBody = 64 << 20

// New returns a client. It makes no request.
func New(c Config, o Options) (*Client, error) {
	base, err := url.Parse(c.Server)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return nil, fmt.Errorf("server: %q is not the URL of an API server", c.Server)
	}
	if base.Scheme == "http" && (c.Token != nil || len(c.Cert) > 0) {
		return nil, holdfast.WithHint(fmt.Errorf("server: %q has no TLS, and the credentials must stay secret", c.Server), "use an https:// URL")
	}
	t, err := c.transport(o)
	if err != nil {
		return nil, err
	}
	o.Limit = cmp.Or(o.Limit, DefaultLimit)
	o.Agent = cmp.Or(o.Agent, "holdfast")
	// A redirect could send the token to another server.
	never := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{conf: c, base: base, http: &http.Client{Transport: t, CheckRedirect: never}, opt: o}, nil
}

// Close closes idle connections. No call may follow.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// request is one call.
type request struct {
	verb   string // as RBAC has it
	method string
	path   string
	query  url.Values
	kind   string // Content-Type of the body
	body   any    // sent as JSON; nil: none
}

// Kinds of patches.
const (
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
	plainJSON      = "application/json"
)

// call makes a request and decodes the answer into out unless out is nil.
func (c *Client) call(ctx context.Context, r request, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.opt.Limit)
	defer cancel()
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return r.failed(&UnreachableError{err})
	case len(body) > maxBody:
		return r.failed(fmt.Errorf("the answer exceeds %d bytes", maxBody))
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return r.failed(statusOf(resp, body))
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return r.failed(fmt.Errorf("the answer: %w", err))
	}
	return nil
}

func (r request) failed(err error) error {
	return fmt.Errorf("%s %s: %w", r.verb, strings.TrimPrefix(r.path, "/"), err)
}

// send makes a request, and repeats it once with a fresh token if the server
// rejects the token. The caller closes the answer's body.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	resp, err := c.once(ctx, r, false)
	if err == nil && resp.StatusCode == http.StatusUnauthorized && c.conf.Token != nil {
		resp.Body.Close()
		resp, err = c.once(ctx, r, true)
	}
	return resp, err
}

func (c *Client) once(ctx context.Context, r request, fresh bool) (*http.Response, error) {
	req, err := c.build(ctx, r, fresh)
	if err != nil {
		return nil, r.failed(err)
	}
	begin := time.Now()
	resp, err := c.http.Do(req)
	code := 0
	if err == nil {
		code = resp.StatusCode
	}
	if c.opt.Observe != nil {
		c.opt.Observe(r.verb, code, time.Since(begin))
	}
	if err == nil {
		return resp, nil
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // without the URL, which failed adds
	}
	if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) {
		return nil, r.failed(cause)
	}
	return nil, r.failed(&UnreachableError{err})
}

func (c *Client) build(ctx context.Context, r request, fresh bool) (*http.Request, error) {
	u := *c.base
	u.Path = strings.TrimSuffix(u.Path, "/") + r.path
	u.RawQuery = r.query.Encode()
	var body io.Reader
	if r.body != nil {
		b, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", plainJSON)
	req.Header.Set("User-Agent", c.opt.Agent)
	if r.body != nil {
		req.Header.Set("Content-Type", r.kind)
	}
	if c.conf.AsUser != "" {
		req.Header.Set("Impersonate-User", c.conf.AsUser)
		for _, g := range c.conf.AsGroups {
			req.Header.Add("Impersonate-Group", g)
		}
	}
	if c.conf.Token != nil {
		token, err := c.conf.Token(ctx, fresh)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return req, nil
}

// get reads one object.
func (c *Client) get(ctx context.Context, path string, out any) error {
	return c.call(ctx, request{verb: "get", method: http.MethodGet, path: path}, out)
}

// pageSize is the maximum number of objects in one page of a list.
const pageSize = "500"

// listAgain is how often a list is restarted after its continue token expired.
const listAgain = 3

// list reads all objects of a path, page by page.
func list[T any](ctx context.Context, c *Client, path string, query url.Values) (items []T, err error) {
	for range listAgain {
		items, err = listOnce[T](ctx, c, path, query)
		if Code(err) != http.StatusGone {
			break
		}
	}
	return items, err
}

func listOnce[T any](ctx context.Context, c *Client, path string, query url.Values) ([]T, error) {
	q := url.Values{"limit": {pageSize}}
	maps.Copy(q, query)
	items := []T{}
	for {
		var page struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []T `json:"items"`
		}
		if err := c.call(ctx, request{verb: "list", method: http.MethodGet, path: path, query: q}, &page); err != nil {
			return nil, err
		}
		items = append(items, page.Items...)
		if page.Metadata.Continue == "" {
			return items, nil
		}
		q.Set("continue", page.Metadata.Continue)
	}
}

// Raw makes a request for which Client has no method: method and path as in the
// API's reference, kind the content type of body. A non-nil body is sent as JSON.
// The answer is decoded into out unless out is nil; an answer that is not JSON
// needs a nil out.
func (c *Client) Raw(ctx context.Context, method, path, kind string, body, out any) error {
	p, query, _ := strings.Cut(path, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		return err
	}
	return c.call(ctx, request{verb: strings.ToLower(method), method: method, path: p, query: q, kind: kind, body: body}, out)
}

// Config returns the client's configuration.
func (c *Client) Config() Config { return c.conf }
