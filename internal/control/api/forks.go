package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"holdfast"
)

// Forks starts sessions from the memory of others. *fork.Forker implements it.
type Forks interface {
	// Snapshots lists the snapshots of all nodes, by name.
	Snapshots(ctx context.Context) ([]holdfast.MemorySnapshot, error)

	// TakeSnapshot copies a session of this node, which goes on. life is how long the
	// snapshot is kept; 0 leaves that to the agent. holdfast.ErrNotFound for the session;
	// holdfast.ErrExists for the name; holdfast.ErrNoMemory if it was not attempted.
	TakeSnapshot(ctx context.Context, key, name holdfast.SessionKey, life time.Duration) (holdfast.MemorySnapshot, error)

	// RemoveSnapshot removes a snapshot. holdfast.ErrNotFound.
	RemoveSnapshot(ctx context.Context, name holdfast.SessionKey) error

	// StartFrom starts a session from a snapshot, and returns when it is ready.
	// holdfast.ErrNotFound for the snapshot; holdfast.ErrExists for the session;
	// *holdfast.BootError.
	StartFrom(ctx context.Context, key, name holdfast.SessionKey) (holdfast.Owner, error)

	// Fork copies a session of this node, and starts the children from the copy. It returns
	// when all are ready or have failed, which is no error. After an error none was started:
	// holdfast.ErrNotFound, holdfast.ErrNoMemory, or holdfast.ErrExists for a child.
	Fork(ctx context.Context, key holdfast.SessionKey, children []holdfast.SessionKey) (holdfast.ForkReport, error)
}

// SnapshotRequest asks for a copy of a session under a name.
type SnapshotRequest struct {
	Name string          `json:"name"`              // it has the form of a session's key
	Keep holdfast.Millis `json:"keep_ms,omitempty"` // how long, at least a minute; 0 leaves that to the agent
}

// MinKeep is the shortest time that a snapshot may be kept.
const MinKeep = time.Minute

// ForkRequest names the sessions that are to start from a copy of another one.
type ForkRequest struct {
	Children []holdfast.SessionKey `json:"children"` // 1 to holdfast.MaxForks different ones
}

// SnapshotList is the answer to a list of snapshots.
type SnapshotList struct {
	Snapshots []holdfast.MemorySnapshot `json:"snapshots"`
}

type forkHandlers struct {
	forks  Forks
	groups Groups
}

func forkRoutes(f Forks, g Groups) []route {
	h := forkHandlers{f, g}
	return []route{
		{method: "POST", path: "/v1/sessions/{key}/snapshot", id: "takeSnapshot", summary: "Copy a session's memory and files under a name; the session goes on.",
			access: forAdmin, at: atItsOwner, limit: limitStart, request: SnapshotRequest{}, answer: holdfast.MemorySnapshot{}, handle: ofKey(h.take)},
		{method: "POST", path: "/v1/sessions/{key}/fork", id: "forkSession", summary: "Start other sessions from a copy of a session, which goes on; answers when all are ready or have failed.",
			access: forAdmin, at: atItsOwner, limit: limitStart, request: ForkRequest{}, answer: holdfast.ForkReport{}, handle: ofKey(h.fork)},
		{method: "GET", path: "/v1/snapshots", id: "listSnapshots", summary: "The snapshots of all nodes, by name.",
			access: forReader, limit: limitAsk, answer: SnapshotList{}, handle: asking(h.list)},
		{method: "DELETE", path: "/v1/snapshots/{name}", id: "removeSnapshot", summary: "Remove a snapshot; sessions that have started from it go on.",
			access: forAdmin, limit: limitAsk, status: http.StatusNoContent, handle: h.remove},
	}
}

func (h forkHandlers) take(ctx context.Context, key holdfast.SessionKey, q SnapshotRequest) (holdfast.MemorySnapshot, error) {
	name, err := snapshotName(q.Name)
	if err != nil {
		return holdfast.MemorySnapshot{}, err
	}
	if keep := time.Duration(q.Keep); keep != 0 && keep < MinKeep {
		return holdfast.MemorySnapshot{}, badRequest("keep_ms has to be at least a minute")
	}
	return h.forks.TakeSnapshot(ctx, key, name, time.Duration(q.Keep))
}

// snapshotName checks the name of a snapshot.
func snapshotName(name string) (holdfast.SessionKey, error) {
	key, err := holdfast.ParseSessionKey(name)
	if err != nil {
		return "", fmt.Errorf("the name of the snapshot: %w", err)
	}
	return key, nil
}

func (h forkHandlers) fork(ctx context.Context, key holdfast.SessionKey, q ForkRequest) (holdfast.ForkReport, error) {
	if n := len(q.Children); n < 1 || n > holdfast.MaxForks {
		return holdfast.ForkReport{}, badRequest("children has %d keys, there have to be 1 to %d", n, holdfast.MaxForks)
	}
	for i, child := range q.Children {
		if _, err := holdfast.ParseSessionKey(string(child)); err != nil {
			return holdfast.ForkReport{}, err
		}
		if child == key || slices.Contains(q.Children[:i], child) {
			return holdfast.ForkReport{}, &Error{Code: CodeBadRequest, Message: fmt.Sprintf("children has %s twice, or it is the session itself", child), Advice: "each child needs a key of its own"}
		}
		if err := refuseReplica(h.groups, child); err != nil {
			return holdfast.ForkReport{}, err
		}
	}
	rep, err := h.forks.Fork(ctx, key, q.Children)
	rep.Children = notNil(rep.Children)
	return rep, err
}

func (h forkHandlers) list(r *http.Request) (SnapshotList, error) {
	all, err := h.forks.Snapshots(r.Context())
	return SnapshotList{notNil(all)}, err
}

func (h forkHandlers) remove(w http.ResponseWriter, r *http.Request) error {
	name, err := snapshotName(r.PathValue("name"))
	if err != nil {
		return err
	}
	if err := h.forks.RemoveSnapshot(r.Context(), name); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
