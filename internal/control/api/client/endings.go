package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"holdfast"
	"holdfast/internal/control/api"
)

// SessionEndings returns how the epochs of a session ended on any node within the last
// day, the newest first, at most limit (0: all), with the output of boots that failed.
func (c *Client) SessionEndings(ctx context.Context, key holdfast.SessionKey, limit int) (holdfast.EndingReport, error) {
	return get[holdfast.EndingReport](ctx, c, sessionPath(key, "/endings?limit="+strconv.Itoa(limit)))
}

// Endings is SessionEndings without output; also of all sessions, for "".
func (c *Client) Endings(ctx context.Context, key holdfast.SessionKey, limit int) (holdfast.EndingReport, error) {
	return get[holdfast.EndingReport](ctx, c, "/v1/endings?"+endingsQuery(key, limit))
}

// NodeEndings returns the endings that a node knows itself. holdfast.ErrNotFound: the node
// is not up.
func (c *Client) NodeEndings(ctx context.Context, node holdfast.NodeID, key holdfast.SessionKey, limit int) ([]holdfast.Ending, error) {
	a, err := get[api.Endings](ctx, c, nodePath(node, "/endings?"+endingsQuery(key, limit)))
	return a.Endings, err
}

func endingsQuery(key holdfast.SessionKey, limit int) string {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if key != "" {
		q.Set("key", string(key))
	}
	return q.Encode()
}

// EventsQuery selects events of a node.
type EventsQuery struct {
	Node  holdfast.NodeID     // "" is the agent's own
	Key   holdfast.SessionKey // "" is all
	After int64               // as of api.History
	Once  bool                // end after the events that are kept
}

// maxEvent is the longest line of an event stream, in bytes.
const maxEvent = 64 << 10

// Events calls each for every event of a node's sessions, until ctx is done, each returns
// an error or the agent ends the stream, which is no error.
func (c *Client) Events(ctx context.Context, q EventsQuery, each func(holdfast.SessionEvent) error) error {
	path := "/v1/events"
	if q.Node != "" {
		path = nodePath(q.Node, "/events")
	}
	v := url.Values{"after": {strconv.FormatInt(q.After, 10)}, "follow": {strconv.FormatBool(!q.Once)}}
	if q.Key != "" {
		v.Set("key", string(q.Key))
	}
	resp, err := c.open(ctx, http.MethodGet, path+"?"+v.Encode(), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	in := bufio.NewScanner(resp.Body)
	in.Buffer(nil, maxEvent)
	for in.Scan() {
		data, ok := bytes.CutPrefix(in.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		var e holdfast.SessionEvent
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("reading the events of sessions: %w", err)
		}
		if err := each(e); err != nil {
			return err
		}
	}
	if err := in.Err(); err != nil {
		return c.lost(ctx, err)
	}
	return ctx.Err()
}
