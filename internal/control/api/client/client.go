// Package client calls an agent's API over its unix socket, or over TLS with a token.
// Errors of the agent are *api.Error, for which errors.Is finds the sentinels of the
// root package. If the agent cannot be reached the error is ErrUnreachable.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
)

// ErrUnreachable means that no agent answered: no agent runs, the caller may not
// connect to it, or it ended before it answered.
var ErrUnreachable = errors.New("the agent is not reachable")

// AddressError means that Options.URL cannot be used.
type AddressError struct{ Reason string }

func (e *AddressError) Error() string { return e.Reason }

// Hint shows a valid address.
func (e *AddressError) Hint() string { return "HOLDFAST_URL must look like https://host:port" }

// maxAnswer is the most bytes that the client reads of one answer, except of a stream.
const maxAnswer = 256 << 20

// Options are the address of the agent.
type Options struct {
	Socket string // path of the unix socket; used if URL is "" and Dial is nil
	URL    string // https://host:port, or http:// for a loopback address
	Token  string // sent as bearer token with URL
	TLS    *tls.Config
	// Dial, if not nil, makes every connection. A node uses it to connect to another
	// node. It takes precedence over Socket and URL.
	Dial func(context.Context) (net.Conn, error)
	Name string // the address that Dial connects to, for errors
	Via  string // the program that calls, for the agent's audit log; see api.ViaHeader
}

// Client calls one agent. Any goroutine may use it.
type Client struct {
	o    Options
	base string
	http *http.Client
}

// New returns a client. It connects at the first call. The error is an *AddressError.
func New(o Options) (*Client, error) {
	c := &Client{o: o, base: "http://agent"}
	// This transport speaks HTTP/1.1 only, which exec needs.
	t := &http.Transport{TLSClientConfig: o.TLS, ExpectContinueTimeout: 10 * time.Second}
	switch {
	case o.Dial != nil:
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return o.Dial(ctx) }
	case o.URL == "":
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", o.Socket)
		}
	default:
		u, err := url.Parse(o.URL)
		if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
			return nil, &AddressError{fmt.Sprintf("%q is not the address of an agent", o.URL)}
		}
		if u.Scheme == "http" && o.Token != "" && !loopback(u.Hostname()) {
			return nil, &AddressError{fmt.Sprintf("the token would be sent to %s in clear text", u.Host)}
		}
		c.base = u.Scheme + "://" + u.Host
	}
	// An agent never redirects.
	c.http = &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// As returns a client that names another program in the agent's audit log. It uses the
// connections of c.
func (c *Client) As(via string) *Client {
	other := *c
	other.o.Via = via
	return &other
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Version returns the agent's version.
func (c *Client) Version(ctx context.Context) (api.Version, error) {
	return get[api.Version](ctx, c, "/v1/version")
}

// Sessions lists all sessions, by key.
func (c *Client) Sessions(ctx context.Context) ([]api.Session, error) {
	a, err := get[api.Sessions](ctx, c, "/v1/sessions")
	return a.Sessions, err
}

// Session returns one session. holdfast.ErrNotFound.
func (c *Client) Session(ctx context.Context, key holdfast.SessionKey) (api.Session, error) {
	return get[api.Session](ctx, c, sessionPath(key, ""))
}

// SessionUsage returns what a session's container uses.
func (c *Client) SessionUsage(ctx context.Context, key holdfast.SessionKey) (holdfast.Usage, error) {
	return get[holdfast.Usage](ctx, c, sessionPath(key, "/usage"))
}

// StartSession returns when the session is ready. A template of "" leaves the
// choice to the agent.
func (c *Client) StartSession(ctx context.Context, key holdfast.SessionKey, template string) (api.Session, error) {
	return post[api.Session](ctx, c, sessionPath(key, "/start"), api.StartRequest{Template: template})
}

// StartSessionFrom starts a session from a snapshot, and returns when it is ready.
// holdfast.ErrExists if it exists; holdfast.ErrNotFound for the snapshot.
func (c *Client) StartSessionFrom(ctx context.Context, key, snapshot holdfast.SessionKey) (api.Session, error) {
	return post[api.Session](ctx, c, sessionPath(key, "/start"), api.StartRequest{From: string(snapshot)})
}

// TakeSnapshot copies a session, which goes on. With keep 0 the agent chooses how long the
// snapshot is kept.
func (c *Client) TakeSnapshot(ctx context.Context, key, name holdfast.SessionKey, keep time.Duration) (holdfast.MemorySnapshot, error) {
	return post[holdfast.MemorySnapshot](ctx, c, sessionPath(key, "/snapshot"), api.SnapshotRequest{Name: string(name), Keep: holdfast.Millis(keep)})
}

// Snapshots lists the snapshots of all nodes, by name.
func (c *Client) Snapshots(ctx context.Context) ([]holdfast.MemorySnapshot, error) {
	a, err := get[api.SnapshotList](ctx, c, "/v1/snapshots")
	return a.Snapshots, err
}

// RemoveSnapshot removes a snapshot. holdfast.ErrNotFound.
func (c *Client) RemoveSnapshot(ctx context.Context, name holdfast.SessionKey) error {
	return c.ask(ctx, http.MethodDelete, "/v1/snapshots/"+url.PathEscape(string(name)), nil, nil)
}

// ForkSession starts other sessions from a copy of a session, and returns when all are ready
// or have failed.
func (c *Client) ForkSession(ctx context.Context, key holdfast.SessionKey, children []holdfast.SessionKey) (holdfast.ForkReport, error) {
	return post[holdfast.ForkReport](ctx, c, sessionPath(key, "/fork"), api.ForkRequest{Children: children})
}

// StopSession returns when the session's container is seen dead, or the agent gave up:
// see the report's Left.
func (c *Client) StopSession(ctx context.Context, key holdfast.SessionKey) (holdfast.KillReport, error) {
	return post[holdfast.KillReport](ctx, c, sessionPath(key, "/stop"), api.Empty{})
}

// SuspendSession saves a session's memory for the next connect and stops the session.
// With holdfast.ErrNoMemory the memory cannot be saved and the session continues.
func (c *Client) SuspendSession(ctx context.Context, key holdfast.SessionKey) (holdfast.SuspendReport, error) {
	return post[holdfast.SuspendReport](ctx, c, sessionPath(key, "/suspend"), api.Empty{})
}

// ResumeSession returns when the suspended session is ready; its Memory says whether it
// was restored. A running session stays as it is.
func (c *Client) ResumeSession(ctx context.Context, key holdfast.SessionKey) (api.Session, error) {
	return post[api.Session](ctx, c, sessionPath(key, "/resume"), api.Empty{})
}

// WakeSession wakes a session that sleeps or is suspended, or sets or removes the time at which
// it wakes.
func (c *Client) WakeSession(ctx context.Context, key holdfast.SessionKey, q api.WakeRequest) (api.Session, error) {
	return post[api.Session](ctx, c, sessionPath(key, "/wake"), q)
}

// MoveSession is StopSession for a session that is to start on another node; see
// api.MoveRequest.
func (c *Client) MoveSession(ctx context.Context, key holdfast.SessionKey, q api.MoveRequest) (holdfast.MoveReport, error) {
	return post[holdfast.MoveReport](ctx, c, sessionPath(key, "/move"), q)
}

// Nodes lists the nodes that are up, by id.
func (c *Client) Nodes(ctx context.Context) ([]holdfast.Node, error) {
	a, err := get[api.Nodes](ctx, c, "/v1/nodes")
	return a.Nodes, err
}

// Cordon makes a node refuse new sessions; it keeps those that it has. A node of "" is
// the agent's own. holdfast.ErrNotFound: the node is not up.
func (c *Client) Cordon(ctx context.Context, node holdfast.NodeID) error {
	return c.ask(ctx, http.MethodPost, nodePath(node, "/cordon"), api.Empty{}, nil)
}

// Uncordon lets a node accept sessions again. A node of "" is the agent's own.
func (c *Client) Uncordon(ctx context.Context, node holdfast.NodeID) error {
	return c.ask(ctx, http.MethodPost, nodePath(node, "/uncordon"), api.Empty{}, nil)
}

// Replacements lists past replacements by a node's agent, the newest first, at most
// limit (0: all that are kept). A node of "" is the agent's own.
func (c *Client) Replacements(ctx context.Context, node holdfast.NodeID, limit int) ([]holdfast.Replacement, error) {
	path := "/v1/replacements"
	if node != "" {
		path = nodePath(node, "/replacements")
	}
	a, err := get[api.Replacements](ctx, c, path+"?limit="+strconv.Itoa(limit))
	return a.Replacements, err
}

// Protection returns the host's past and current holds of restarting servers.
func (c *Client) Protection(ctx context.Context) (api.Protection, error) {
	return get[api.Protection](ctx, c, "/v1/protect")
}

// Groups returns the groups of replicas, by name.
func (c *Client) Groups(ctx context.Context) ([]holdfast.Group, error) {
	a, err := get[api.GroupList](ctx, c, "/v1/groups")
	return a.Groups, err
}

// StopReplacing ends the replacement of a group after the replica whose turn it is.
func (c *Client) StopReplacing(ctx context.Context, group string) error {
	return c.ask(ctx, http.MethodPost, "/v1/groups/"+url.PathEscape(group)+"/stop-replacing", api.Empty{}, nil)
}

// StopAgent asks the agent to end, which answers first. With keep the containers stay
// for the next agent.
func (c *Client) StopAgent(ctx context.Context, keep bool) error {
	return c.ask(ctx, http.MethodPost, "/v1/agent/stop", api.StopAgentRequest{Keep: keep}, nil)
}

// UpgradeAgent replaces the agent by the program on disk, and returns when the new
// agent takes over; see api.UpgradeRequest for trial. holdfast.ErrBusy.
func (c *Client) UpgradeAgent(ctx context.Context, trial time.Duration) (api.Upgrade, error) {
	return post[api.Upgrade](ctx, c, "/v1/agent/upgrade", api.UpgradeRequest{Trial: (*holdfast.Millis)(&trial)})
}

// LastUpgrade returns the state of the last upgrade.
func (c *Client) LastUpgrade(ctx context.Context) (api.Upgrade, error) {
	return get[api.Upgrade](ctx, c, "/v1/agent/upgrade")
}

// Ready returns nil when the agent can serve sessions.
func (c *Client) Ready(ctx context.Context) error {
	_, err := get[api.Health](ctx, c, "/readyz")
	return err
}

// sessionPath escapes a key that was not parsed: the agent then refuses it, and the
// request reaches no other route.
func sessionPath(key holdfast.SessionKey, rest string) string {
	return "/v1/sessions/" + url.PathEscape(string(key)) + rest
}

// nodePath returns a route of the given node, or of the agent's own node for "".
func nodePath(node holdfast.NodeID, rest string) string {
	if node == "" {
		return "/v1/node" + rest
	}
	return "/v1/nodes/" + url.PathEscape(string(node)) + rest
}

func get[T any](ctx context.Context, c *Client, path string) (answer T, err error) {
	err = c.ask(ctx, http.MethodGet, path, nil, &answer)
	return answer, err
}

func post[T any](ctx context.Context, c *Client, path string, body any) (answer T, err error) {
	err = c.ask(ctx, http.MethodPost, path, body, &answer)
	return answer, err
}

// request returns a request with body as JSON, or without a body if it is nil.
func (c *Client) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	var b io.Reader
	if body != nil {
		j, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		b = bytes.NewReader(j)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, b)
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	c.authorize(r)
	return r, nil
}

func (c *Client) authorize(r *http.Request) {
	if c.o.Token != "" && c.o.URL != "" && c.o.Dial == nil {
		r.Header.Set("Authorization", "Bearer "+c.o.Token)
	}
	if c.o.Via != "" {
		r.Header.Set(api.ViaHeader, c.o.Via)
	}
}

// ask sends a request and reads its whole answer.
func (c *Client) ask(ctx context.Context, method, path string, body, answer any) error {
	resp, err := c.open(ctx, method, path, body)
	if err != nil {
		return err
	}
	return c.read(ctx, resp, answer)
}

// read reads a whole answer.
func (c *Client) read(ctx context.Context, resp *http.Response, answer any) error {
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return c.lost(ctx, err)
	}
	if len(b) > maxAnswer {
		return fmt.Errorf("reading the agent's answer: it has more than %d MiB", maxAnswer>>20)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(b, answer); err != nil {
		return fmt.Errorf("reading the agent's answer: %w", err)
	}
	return nil
}

// open is send for a request with the given content.
func (c *Client) open(ctx context.Context, method, path string, body any) (*http.Response, error) {
	r, err := c.request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	return c.send(r)
}

// send sends a request and returns the answer if its status is good. The caller reads
// and closes the body.
func (c *Client) send(r *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, c.lost(r.Context(), err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, c.lost(r.Context(), err)
	}
	var body api.ErrorBody
	if json.Unmarshal(b, &body) != nil || body.Error.Code == "" {
		return nil, fmt.Errorf("the server there is not a holdfast agent: status %s", resp.Status)
	}
	return nil, &body.Error
}

// lost returns the error for a broken exchange with the agent.
func (c *Client) lost(ctx context.Context, err error) error {
	if cause := ctx.Err(); errors.Is(cause, context.Canceled) {
		return cause
	} else if cause != nil {
		return holdfast.WithHint(fmt.Errorf("%w: no answer in time", ErrUnreachable), "raise the limit with --timeout, or look at the agent's log")
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // without the method and the placeholder for a host
	}
	where, hint := c.where()
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return holdfast.WithHint(fmt.Errorf("%w: nothing listens at %s", ErrUnreachable, where), hint)
	case errors.Is(err, fs.ErrPermission):
		return holdfast.WithHint(fmt.Errorf("%w: no permission to open %s", ErrUnreachable, where), "run this as root")
	case untrusted:
		return holdfast.WithHint(fmt.Errorf("%w: %s: %v", ErrUnreachable, where, err),
			"HOLDFAST_CA names the file with the certificates of its authority")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return holdfast.WithHint(fmt.Errorf("%w: it ended before it answered", ErrUnreachable), "look at the agent's log")
	}
	return holdfast.WithHint(fmt.Errorf("%w: %s: %s", ErrUnreachable, where, strings.TrimSpace(err.Error())), hint)
}

// where returns the agent's address, and the advice if no agent answers there.
func (c *Client) where() (address, hint string) {
	switch {
	case c.o.Dial != nil:
		return c.o.Name, "check that the agent runs on that node"
	case c.o.URL != "":
		return c.o.URL, "check that the agent runs there; HOLDFAST_URL names its address"
	}
	return c.o.Socket, "start it with `holdfast agent`, or name its socket with --socket"
}
