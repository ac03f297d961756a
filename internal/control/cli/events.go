package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api/client"
	"holdfast/internal/platform/tasks"
)

// Times of `session events --follow`.
const (
	nodesEvery  = 10 * time.Second // between looks for new nodes
	againLater  = time.Second      // before a node is asked again, at first
	againLatest = 30 * time.Second
)

func (a *app) sessionEvents() *cobra.Command {
	var (
		follow bool
		node   string
	)
	cmd := &cobra.Command{
		Use:   "events [KEY]",
		Short: "Show what happens to sessions",
		Long: "Show the last events of sessions on all nodes: requested, boot, resumed, ready, suspended, moved and ended, with the reason.\n" +
			"With --follow, new events follow as they happen, also those of nodes that come later, until you interrupt it. With --json each event is one line.\n" +
			"An event lost says how many events of a node are missing, because its agent keeps the last ones only.",
		Example: "  holdfast session events --follow\n  holdfast session events alice --json",
		Args:    args(0, 1, "at most one session key"), ValidArgsFunction: onlyOne(a.completeKeys),
		RunE: func(cmd *cobra.Command, words []string) error {
			key, err := keyArg(words)
			if err != nil {
				return err
			}
			limit := askLimit
			if follow {
				limit = noLimit
			}
			return a.with(cmd, limit, func(ctx context.Context, c *client.Client) error {
				f := &eventFollower{a: a, c: c, query: client.EventsQuery{Node: holdfast.NodeID(node), Key: key, Once: !follow}, known: map[holdfast.NodeID]bool{}}
				if !follow {
					return f.past(ctx)
				}
				return f.follow(ctx)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "continue with new events")
	f.StringVar(&node, "node", "", "only events of this node")
	a.completeNodeFlag(cmd)
	return cmd
}

// eventFollower prints the events of several nodes.
type eventFollower struct {
	a     *app
	c     *client.Client
	query client.EventsQuery

	mu    sync.Mutex // of what is printed
	known map[holdfast.NodeID]bool
	all   sync.WaitGroup
}

// nodes returns the nodes to be asked.
func (f *eventFollower) nodes(ctx context.Context) ([]holdfast.NodeID, error) {
	if f.query.Node != "" {
		return []holdfast.NodeID{f.query.Node}, nil
	}
	up, err := f.c.Nodes(ctx)
	var ids []holdfast.NodeID
	for _, n := range up {
		ids = append(ids, n.ID)
	}
	return ids, err
}

// past prints the events that are kept, node by node.
func (f *eventFollower) past(ctx context.Context) error {
	ids, err := f.nodes(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, id := range ids {
		q := f.query
		q.Node = id
		if err := f.c.Events(ctx, q, f.print); err != nil {
			failed = append(failed, fmt.Errorf("node %s is left out: %w", id, err))
		}
	}
	if len(failed) == len(ids) {
		return errors.Join(failed...)
	}
	for _, err := range failed {
		f.a.ui.note("%s", clean(err.Error()))
	}
	return nil
}

// follow prints the events of all nodes until ctx is done.
func (f *eventFollower) follow(ctx context.Context) error {
	defer f.all.Wait()
	for {
		ids, err := f.nodes(ctx)
		if err != nil && len(f.known) == 0 {
			return err
		}
		for _, id := range ids {
			if !f.known[id] {
				f.known[id] = true
				f.all.Go(func() { f.one(ctx, id) })
			}
		}
		if err := tasks.Sleep(ctx, nodesEvery); err != nil {
			return err
		}
	}
}

// one follows a node until ctx is done. It continues after the last event that it has
// seen.
func (f *eventFollower) one(ctx context.Context, id holdfast.NodeID) {
	q := f.query
	q.Node = id
	for pause := againLater; ; pause = min(2*pause, againLatest) {
		err := f.c.Events(ctx, q, func(e holdfast.SessionEvent) error {
			q.After, pause = e.ID, againLater
			return f.print(e)
		})
		if err != nil && ctx.Err() == nil {
			f.a.ui.note("node %s: %s", clean(string(id)), clean(err.Error()))
		}
		if tasks.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// print prints an event as a line.
func (f *eventFollower) print(e holdfast.SessionEvent) error {
	line := eventText(e)
	if f.a.ui.json {
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		line = string(b)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := fmt.Fprintln(f.a.ui.out, line); err != nil {
		return fmt.Errorf("printing an event: %w", err)
	}
	return nil
}

func eventText(e holdfast.SessionEvent) string {
	if e.Type == holdfast.EventLost {
		if e.Lost < 0 {
			return fmt.Sprintf("%s: events of node %s are lost", e.Type, clean(string(e.Node)))
		}
		return fmt.Sprintf("%s: %s of node %s", e.Type, count(int(e.Lost), "event"), clean(string(e.Node)))
	}
	parts := []string{stamp(e.At), fmt.Sprintf("%-9s", e.Type), string(e.Key)}
	if e.Epoch != 0 {
		parts = append(parts, fmt.Sprintf("epoch %d", e.Epoch))
	}
	parts = append(parts, "on "+clean(string(e.Node)))
	if e.Took > 0 {
		parts = append(parts, "after "+e.Took.String())
	}
	text := strings.Join(parts, "  ")
	if e.Ending != nil {
		text += ": " + clean(e.Ending.Text())
	}
	return text
}
