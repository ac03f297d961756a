package mcp

import (
	"context"
	"slices"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
)

// Time limits of calls. That of a start is the agent's own, at most.
const (
	askLimit   = 10 * time.Second
	stopLimit  = time.Minute
	startLimit = 10 * time.Minute
)

// session is a session in a list.
type session struct {
	Key         string `json:"key"`
	State       string `json:"state"`
	Node        string `json:"node,omitempty"`
	Template    string `json:"template,omitempty"`
	Connections int    `json:"connections"`
	ReadyAt     string `json:"ready_at,omitempty"`
	IdleSince   string `json:"idle_since,omitempty"`
	LastError   string `json:"last_error,omitempty" jsonschema:"of the last boot that failed or container that died"`
}

func sessionOf(s api.Session) session {
	return session{Key: string(s.Key), State: string(s.State), Node: string(s.Node), Template: s.Template, Connections: s.Connections,
		ReadyAt: stamp(s.ReadyAt), IdleSince: stamp(s.IdleSince), LastError: clip(s.LastError, maxName)}
}

// sessionDetails is a session with all that is known of it.
type sessionDetails struct {
	session
	Epoch       int64   `json:"epoch" jsonschema:"the number of this claim; it only grows"`
	ContainerID string  `json:"container_id,omitempty"`
	Address     string  `json:"address,omitempty"`
	ClaimedAt   string  `json:"claimed_at,omitempty"`
	BootMillis  float64 `json:"boot_ms,omitempty"`
	SlowestBoot string  `json:"slowest_boot_phase,omitempty"`
	Memory      string  `json:"memory,omitempty" jsonschema:"restored, saving, or why the memory was not restored"`
	Suspended   string  `json:"suspended_until,omitempty" jsonschema:"the saved memory is deleted then"`
	Group       string  `json:"group,omitempty"`
	Rotation    string  `json:"rotation,omitempty" jsonschema:"state of a replica in its group"`
}

func detailsOf(s api.Session) sessionDetails {
	d := sessionDetails{session: sessionOf(s), Epoch: int64(s.Epoch), ContainerID: s.ContainerID, Address: s.Address, ClaimedAt: stamp(s.ClaimedAt),
		BootMillis: millis(s.Boot.Total()), Memory: clip(s.Memory, maxName), Group: s.Group, Rotation: string(s.Rotation)}
	d.LastError = clip(s.LastError, maxLog)
	if s.Suspended != nil {
		d.Suspended = stamp(s.Suspended.Until)
	}
	d.SlowestBoot = slowest(s.Boot)
	return d
}

// slowest returns the name of a boot's longest phase, "" if it had none.
func slowest(p holdfast.Phases) string {
	name, most := "", holdfast.Millis(0)
	for _, one := range []struct {
		name string
		took holdfast.Millis
	}{{"queue", p.Queue}, {"claim", p.Claim}, {"pull", p.Pull}, {"disk", p.Disk}, {"init", p.Init}, {"create", p.Create}, {"start", p.Start}, {"ready", p.Ready}} {
		if one.took > most {
			name, most = one.name, one.took
		}
	}
	return name
}

// listQuery selects sessions.
type listQuery struct {
	Prefix   string `json:"prefix,omitempty" jsonschema:"only keys that begin with it"`
	State    string `json:"state,omitempty" jsonschema:"only sessions in this state"`
	Node     string `json:"node,omitempty" jsonschema:"only sessions of this node"`
	Template string `json:"template,omitempty" jsonschema:"only sessions of this template"`
	Limit    int    `json:"limit,omitempty" jsonschema:"at most that many"`
	After    string `json:"after,omitempty" jsonschema:"begin after this key: next of the previous page"`
}

type sessionList struct {
	Sessions []session `json:"sessions"`
	Matching int       `json:"matching" jsonschema:"number of sessions that match, on all pages"`
	Next     string    `json:"next,omitempty" jsonschema:"after of the next page; absent on the last one"`
}

func listSessions(ctx context.Context, c *client.Client, q listQuery) (list sessionList, err error) {
	all, err := c.Sessions(ctx)
	if err != nil {
		return list, err
	}
	all = slices.DeleteFunc(all, func(s api.Session) bool {
		return !strings.HasPrefix(string(s.Key), q.Prefix) || q.State != "" && string(s.State) != q.State ||
			q.Node != "" && string(s.Node) != q.Node || q.Template != "" && s.Template != q.Template
	})
	list.Matching = len(all)
	rest := slices.DeleteFunc(all, func(s api.Session) bool { return q.After != "" && string(s.Key) <= q.After })
	page, more := first(rest, q.Limit)
	list.Sessions = make([]session, 0, len(page))
	for _, s := range page {
		list.Sessions = append(list.Sessions, sessionOf(s))
	}
	if more > 0 {
		list.Next = list.Sessions[len(page)-1].Key
	}
	return list, nil
}

// keyQuery names a session.
type keyQuery struct {
	Key string `json:"key" jsonschema:"the session's key"`
}

type startQuery struct {
	keyQuery
	Template string `json:"template,omitempty" jsonschema:"what to start; the agent chooses if absent"`
	Seconds  int    `json:"timeout_seconds,omitempty" jsonschema:"how long to wait until it is ready"`
}

// ended is the result of a stop.
type ended struct {
	Dead   int      `json:"dead" jsonschema:"containers seen dead"`
	Left   []string `json:"left,omitempty" jsonschema:"containers that could not be seen dead, with the reason"`
	Millis float64  `json:"took_ms"`
}

func sessionTools() []tool {
	key := map[string]bound{"key": aKey()}
	return []tool{
		define(about{name: "session_list", title: "List sessions", text: "List the sessions of the fleet, by key.", kind: reads, limit: askLimit,
			bounds: map[string]bound{"prefix": upTo(63), "node": upTo(253), "template": upTo(63), "after": upTo(63), "limit": between(1, 200, 50),
				"state": oneOf(holdfast.Claimed, holdfast.Starting, holdfast.Ready, holdfast.Leaving, holdfast.IsSuspended)}}, listSessions),
		define(about{name: "session_show", title: "Show a session", text: "Show one session with its boot, its node and its last error.", kind: reads, limit: askLimit, bounds: key},
			func(ctx context.Context, c *client.Client, q keyQuery) (sessionDetails, error) {
				s, err := c.Session(ctx, holdfast.SessionKey(q.Key))
				return detailsOf(s), err
			}),
		define(about{name: "session_start", title: "Start a session", text: "Start a session and wait until it is ready. A session that runs stays as it is.", kind: starts, limit: startLimit,
			bounds: map[string]bound{"key": aKey(), "template": upTo(63), "timeout_seconds": between(1, int(startLimit/time.Second), 120)}},
			func(ctx context.Context, c *client.Client, q startQuery) (sessionDetails, error) {
				ctx, cancel := context.WithTimeout(ctx, time.Duration(q.Seconds)*time.Second)
				defer cancel()
				s, err := c.StartSession(ctx, holdfast.SessionKey(q.Key), q.Template)
				return detailsOf(s), err
			}),
		define(about{name: "session_stop", title: "Stop a session", text: "Kill a session's container. What is only in the container is lost.", kind: ends, limit: stopLimit, bounds: key},
			func(ctx context.Context, c *client.Client, q keyQuery) (ended, error) {
				rep, err := c.StopSession(ctx, holdfast.SessionKey(q.Key))
				e := ended{Dead: len(rep.Dead), Millis: millis(rep.Took)}
				for _, l := range rep.Left {
					e.Left = append(e.Left, clip(l.Name+": "+l.Reason, maxName))
				}
				return e, err
			}),
	}
}
