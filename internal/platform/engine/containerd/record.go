package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"google.golang.org/protobuf/types/known/anypb"

	"holdfast"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/engine"
)

// What this package keeps with a container in containerd: labels to look it up
// by, or that change, and a record of what it was made of. Labels with this
// prefix are not shown.
const (
	ownLabels    = "holdfast.engine/"
	labelName    = ownLabels + "name"
	labelRestart = ownLabels + "restart"
	extension    = ownLabels + "record"
)

// record is what containerd has no place for. It never changes.
type record struct {
	Image   string `json:"image"` // as it was named at create
	ImageID string `json:"image_id"`
	Network string `json:"network"` // of the Spec
	PIDMode string `json:"pid_mode"`
	Dir     string `json:"dir"` // of this container's files
	// Shim is the id of the container whose shim this one has, "" for its own.
	Shim string `json:"shim,omitempty"`
	// Volumes are the named ones.
	Volumes []string `json:"volumes,omitempty"`
}

func (r record) any() (*anypb.Any, error) {
	text, err := json.Marshal(r)
	return &anypb.Any{TypeUrl: extension, Value: text}, err
}

// recordOf reads a container's record; of a container that somebody else made
// there is none.
func recordOf(c containers.Container) record {
	var r record
	if ext := c.Extensions[extension]; ext != nil {
		_ = json.Unmarshal(ext.GetValue(), &r) // nobody else writes it
	}
	if r.Image == "" {
		r.Image = c.Image
	}
	return r
}

// labelsOf are a container's labels without our own.
func labelsOf(c containers.Container) map[string]string {
	labels := maps.Clone(c.Labels)
	maps.DeleteFunc(labels, func(key, _ string) bool { return strings.HasPrefix(key, ownLabels) })
	return labels
}

func nameOf(c containers.Container) string {
	if name := c.Labels[labelName]; name != "" {
		return name
	}
	return c.ID
}

func restartOf(c containers.Container) engine.RestartPolicy {
	if p := engine.RestartPolicy(c.Labels[labelRestart]); p != "" {
		return p
	}
	return engine.RestartNo
}

// state is what changes in a container's life and containerd does not keep, or
// not for long enough. It is a file in the container's directory.
type state struct {
	Started time.Time  `json:"started,omitzero"`
	Address netip.Addr `json:"address,omitzero"`
	// Ended is when it was seen to have ended, with ExitCode; or Start failed,
	// with Error.
	Ended    time.Time `json:"ended,omitzero"`
	ExitCode int       `json:"exit_code,omitempty"`
	Error    string    `json:"error,omitempty"`
	OOM      bool      `json:"oom,omitempty"`
	// Stopped says that somebody has killed it by way of the engine: it is not
	// started again.
	Stopped bool `json:"stopped,omitempty"`
	// Restarts counts those in a row by its policy.
	Restarts int `json:"restarts,omitempty"`
}

const stateFile = "state.json"

// readState returns the zero value where there is none yet.
func readState(dir string) (state, error) {
	var s state
	if dir == "" {
		return s, nil // somebody else made it
	}
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return s, fmt.Errorf("read the state of a container: %w", err)
	}
	return s, nil
}

// writeState replaces the file whole. One of a container that is removed
// meanwhile is not made again.
func writeState(dir string, s state) error {
	text, err := json.Marshal(s)
	if err == nil {
		err = atomicfile.WriteNoSync(filepath.Join(dir, stateFile), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the state of a container: %w", err)
	}
	return nil
}

// fullID is how the ids that are given out look.
var fullID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// find returns a container by its id or name.
func (e *Engine) find(ctx context.Context, id string) (containers.Container, error) {
	store := e.api.ContainerService()
	if fullID.MatchString(id) {
		c, err := store.Get(ctx, id)
		if err == nil || !isGone(err) {
			return c, err
		}
	}
	list, err := store.List(ctx, fmt.Sprintf("labels.%q==%q", labelName, id), fmt.Sprintf("id==%q", id))
	if err != nil {
		return containers.Container{}, err
	}
	if len(list) == 0 {
		return containers.Container{}, fmt.Errorf("container %q: %w", id, holdfast.ErrNotFound)
	}
	return list[0], nil
}
