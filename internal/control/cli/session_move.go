package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
)

// moveResult is the output of `session move`.
type moveResult struct {
	Key    holdfast.SessionKey   `json:"key"`
	From   holdfast.NodeID       `json:"from"`
	Node   holdfast.NodeID       `json:"node"` // its node now
	Epoch  holdfast.Epoch        `json:"epoch"`
	Memory holdfast.MemoryReport `json:"memory"`
	Took   holdfast.Millis       `json:"took_ms"` // from the request until the session was ready again
}

func (a *app) sessionMove() *cobra.Command {
	var to string
	cmd := a.aboutKey(&cobra.Command{
		Use:   "move KEY",
		Short: "Move a session to another node",
		Long: "Move a session to another node: with its memory if its template says `handover: memory`, otherwise in a new container.\n" +
			"If no other node takes it, or the named node does not, it stays as it is.",
		Example: "  holdfast session move alice\n  holdfast session move alice --to web-2",
	}, startLimit, func(ctx context.Context, c *client.Client, key holdfast.SessionKey) error {
		return a.moveSession(ctx, c, key, holdfast.NodeID(to))
	})
	cmd.Flags().StringVar(&to, "to", "", "node that must take it (default a node with room)")
	return cmd
}

func (a *app) moveSession(ctx context.Context, c *client.Client, key holdfast.SessionKey, to holdfast.NodeID) error {
	before, err := c.Session(ctx, key)
	if err != nil {
		return err
	}
	begun := time.Now()
	done := sync.OnceFunc(a.ui.progress("moving " + string(key)))
	defer done()
	r, err := c.MoveSession(ctx, key, api.MoveRequest{Elsewhere: true, To: to})
	if err != nil {
		return err
	}
	if err := leftError(r.Left); err != nil {
		return err
	}
	s, err := c.StartSession(ctx, key, "")
	if err != nil {
		return err
	}
	done()
	r.Memory = becameOf(r.Memory, before, s.Memory)
	m := moveResult{Key: key, From: before.Node, Node: s.Node, Epoch: s.Epoch, Memory: r.Memory, Took: holdfast.Millis(time.Since(begun))}
	if err := a.ui.result(m, func(w io.Writer) { fmt.Fprintln(w, m.text()) }); err != nil {
		return err
	}
	if s.Node != r.To {
		return Partial(fmt.Errorf("session %s started on node %s instead of node %s", key, s.Node, r.To), "the log of "+string(r.To)+" has the reason")
	}
	return nil
}

// becameOf returns what happened to a session's memory. The sender does not know
// whether the memory was used, nor, if the answer was lost, whether it arrived.
func becameOf(r holdfast.MemoryReport, before api.Session, now string) holdfast.MemoryReport {
	switch why, lost := strings.CutPrefix(now, "lost: "); {
	case r.Saved > 0 && now != holdfast.Restored:
		if !lost {
			why = "its image was not used"
		}
		r.Saved, r.Lost = 0, []holdfast.LostMemory{{Key: before.Key, Epoch: before.Epoch, Bytes: r.Bytes, Reason: why}}
	case r.Saved == 0 && now == holdfast.Restored && len(r.Lost) > 0:
		r.Saved, r.Bytes, r.Lost = 1, r.Lost[0].Bytes, []holdfast.LostMemory{}
	}
	return r
}

func (m moveResult) text() string {
	how := "in a new container"
	switch {
	case m.Memory.Saved > 0:
		how = "with its memory (" + size(m.Memory.Bytes) + ")"
	case len(m.Memory.Lost) > 0:
		how += "; its memory is lost: " + clean(m.Memory.Lost[0].Reason)
	}
	return fmt.Sprintf("%s has moved from %s to %s after %s, %s", m.Key, m.From, m.Node, m.Took, how)
}
