// Package client calls an agent's API, for programs outside this project. It needs only
// the standard library. `GET /v1/openapi.json` of an agent describes all of the API; Call
// reaches the routes that have no method here.
//
// The package is part of the module holdfast. A program of another module names the
// release or the directory of it in its go.mod:
//
//	require holdfast v0.0.0
//	replace holdfast => ../holdfast
package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"holdfast"
)

// DefaultSocket is where an agent listens unless its configuration names another path.
const DefaultSocket = "/run/holdfast/holdfast.sock"

// maxAnswer is the most bytes of an answer that is not a stream.
const maxAnswer = 256 << 20

// Options are the address of an agent.
type Options struct {
	Socket string      // path of the unix socket, used if URL is ""; "" is DefaultSocket
	URL    string      // https://host:port, or http:// for a loopback address
	Token  string      // bearer token, sent with URL only
	TLS    *tls.Config // with URL; nil trusts the authorities of the system
	// Program is the name of the calling program in the agent's audit log; may be "".
	Program string
}

// Client calls one agent. Any goroutine may use it.
type Client struct {
	o    Options
	base string
	http *http.Client
}

// New returns a client. It connects at the first call.
func New(o Options) (*Client, error) {
	t := &http.Transport{TLSClientConfig: o.TLS} // HTTP/1.1 only: commands upgrade it
	c := &Client{o: o, base: "http://agent", http: &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	if o.URL == "" {
		socket := cmp.Or(o.Socket, DefaultSocket)
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}
		return c, nil
	}
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("%q is not the address of an agent, such as https://host:7071", o.URL)
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && o.Token != "" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("the token would be sent to %s in clear text", u.Host)
	}
	c.base = u.Scheme + "://" + u.Host
	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Call sends a request to a route of the API and decodes the answer. in is the body, nil
// for none; out is a pointer, nil if the answer does not matter. An error of the agent is
// an *Error. Routes that stream are not for Call.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.send(ctx, method, path, in, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("reading the agent's answer: %w", err)
	}
	if len(b) > maxAnswer {
		return fmt.Errorf("reading the agent's answer: it has more than %d MiB", maxAnswer>>20)
	}
	if out == nil || len(b) == 0 {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("reading the agent's answer: %w", err)
	}
	return nil
}

// send returns the answer to a request if its status is below 400. The caller closes its
// body. change may be nil.
func (c *Client) send(ctx context.Context, method, path string, in any, change func(*http.Request)) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.o.URL != "" && c.o.Token != "" {
		r.Header.Set("Authorization", "Bearer "+c.o.Token)
	}
	if c.o.Program != "" {
		r.Header.Set("X-Holdfast-Via", c.o.Program)
	}
	if change != nil {
		change(r)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, fmt.Errorf("calling the agent: %w", err)
	}
	if resp.StatusCode < http.StatusMultipleChoices {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, errorOf(resp)
}

// Version is the build of an agent.
type Version struct {
	Version string          `json:"version"`
	Commit  string          `json:"commit,omitempty"`
	Node    holdfast.NodeID `json:"node,omitempty"`
}

// Version returns the agent's version and its node.
func (c *Client) Version(ctx context.Context) (v Version, err error) {
	return v, c.Call(ctx, http.MethodGet, "/v1/version", nil, &v)
}

// Ready returns nil when the agent can serve sessions.
func (c *Client) Ready(ctx context.Context) error {
	return c.Call(ctx, http.MethodGet, "/readyz", nil, nil)
}

// Nodes lists the nodes of the fleet that are up, by id.
func (c *Client) Nodes(ctx context.Context) ([]holdfast.Node, error) {
	var a struct{ Nodes []holdfast.Node }
	err := c.Call(ctx, http.MethodGet, "/v1/nodes", nil, &a)
	return a.Nodes, err
}

// Session is a session's record, with details that only its own node knows.
type Session struct {
	holdfast.Owner
	Connections int                   `json:"connections"`          // open through the gateway
	IdleSince   time.Time             `json:"idle_since,omitzero"`  // set while Connections is 0 and no command runs
	Sleep       *holdfast.Sleep       `json:"sleep,omitempty"`      // set on its own node if it sleeps when it is not used, or was resumed
	WakeCron    time.Time             `json:"wake_cron,omitzero"`   // next time at which its template wakes it
	LastError   string                `json:"last_error,omitempty"` // of the last boot that failed or container that died
	Suspended   *holdfast.Suspended   `json:"suspended,omitempty"`  // set in the state holdfast.IsSuspended
	Group       string                `json:"group,omitempty"`      // of a replica
	Rotation    holdfast.ReplicaState `json:"rotation,omitempty"`   // of a replica, in its group
}

// Sessions lists all sessions of the fleet, by key.
func (c *Client) Sessions(ctx context.Context) ([]Session, error) {
	var a struct{ Sessions []Session }
	err := c.Call(ctx, http.MethodGet, "/v1/sessions", nil, &a)
	return a.Sessions, err
}

// Session returns one session. holdfast.ErrNotFound.
func (c *Client) Session(ctx context.Context, key holdfast.SessionKey) (s Session, err error) {
	return s, c.Call(ctx, http.MethodGet, at(key, ""), nil, &s)
}

// StartSession returns when the session is ready. A template of "" leaves the choice to
// the agent. The Log of the *Error has the last output of a container that did not boot.
func (c *Client) StartSession(ctx context.Context, key holdfast.SessionKey, template string) (s Session, err error) {
	in := struct {
		Template string `json:"template,omitempty"`
	}{template}
	return s, c.Call(ctx, http.MethodPost, at(key, "/start"), in, &s)
}

// StopSession returns when the session's container is seen dead, or the agent gave up:
// see the report's Left. holdfast.ErrNotFound.
func (c *Client) StopSession(ctx context.Context, key holdfast.SessionKey) (r holdfast.KillReport, err error) {
	return r, c.Call(ctx, http.MethodPost, at(key, "/stop"), struct{}{}, &r)
}

// SuspendSession saves a session's memory for the next connect and stops the session.
// holdfast.ErrNoMemory: it cannot be saved, and the session continues.
func (c *Client) SuspendSession(ctx context.Context, key holdfast.SessionKey) (r holdfast.SuspendReport, err error) {
	return r, c.Call(ctx, http.MethodPost, at(key, "/suspend"), struct{}{}, &r)
}

// ResumeSession returns when a suspended session is ready; its Memory says whether it was
// restored. A running session stays as it is.
func (c *Client) ResumeSession(ctx context.Context, key holdfast.SessionKey) (s Session, err error) {
	return s, c.Call(ctx, http.MethodPost, at(key, "/resume"), struct{}{}, &s)
}

// WakeSession wakes a session that sleeps or is suspended. With a time it sets the one time at
// which the session wakes, at most holdfast.MaxWake ahead.
func (c *Client) WakeSession(ctx context.Context, key holdfast.SessionKey, when time.Time) (s Session, err error) {
	in := struct {
		At time.Time `json:"at,omitzero"`
	}{when}
	return s, c.Call(ctx, http.MethodPost, at(key, "/wake"), in, &s)
}

// LogOptions select lines of a session's output.
type LogOptions struct {
	Tail       int  // the last n lines; below 0: all
	Follow     bool // continue with new output, until the container or ctx ends
	Timestamps bool
}

// Logs copies a session's output to w.
func (c *Client) Logs(ctx context.Context, key holdfast.SessionKey, o LogOptions, w io.Writer) error {
	q := url.Values{"tail": {strconv.Itoa(o.Tail)}, "follow": {strconv.FormatBool(o.Follow)}, "timestamps": {strconv.FormatBool(o.Timestamps)}}
	resp, err := c.send(ctx, http.MethodGet, at(key, "/logs?"+q.Encode()), nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("copying the output: %w", err)
	}
	if late := resp.Trailer.Get("Holdfast-Error"); late != "" {
		e := &Error{Code: "internal", Message: late}
		_ = json.Unmarshal([]byte(late), e) // otherwise the text as it is
		return e
	}
	return nil
}

// at returns a route of a session. A key that is none reaches no other route.
func at(key holdfast.SessionKey, rest string) string {
	return "/v1/sessions/" + url.PathEscape(string(key)) + rest
}
