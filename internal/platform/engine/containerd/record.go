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
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"google.golang.org/protobuf/types/known/anypb"

	"holdfast"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/engine"
)

// The names of this package's data at a container in containerd: labels for lookups
// and for changing values, and the record of its creation. Labels with this prefix
// are not shown.
const (
	ownLabels    = "holdfast.engine/"
	labelName    = ownLabels + "name"
	labelRestart = ownLabels + "restart"
	extension    = ownLabels + "record"
)

// record has the settings for which containerd has no field. It never changes.
type record struct {
	Image   string `json:"image"` // the name given at create
	ImageID string `json:"image_id"`
	Network string `json:"network"` // of the Spec
	PIDMode string `json:"pid_mode"`
	Dir     string `json:"dir"` // of this container's files
	// Shim is the id of the container whose shim this one shares, or "".
	Shim string `json:"shim,omitempty"`
	// Volumes are the named volumes.
	Volumes []string `json:"volumes,omitempty"`
}

func (r record) any() (*anypb.Any, error) {
	text, err := json.Marshal(r)
	return &anypb.Any{TypeUrl: extension, Value: text}, err
}

// recordOf reads a container's record, or the zero value if another client made the
// container.
func recordOf(c containers.Container) record {
	var r record
	if ext := c.Extensions[extension]; ext != nil {
		_ = json.Unmarshal(ext.GetValue(), &r) // only this package writes it
	}
	if r.Image == "" {
		r.Image = c.Image
	}
	return r
}

// labelsOf returns a container's labels without those of this package.
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

// state has the changing data of a container that containerd does not keep, or not
// for long enough. It is a file in the container's directory.
type state struct {
	Started time.Time  `json:"started,omitzero"`
	Address netip.Addr `json:"address,omitzero"`
	// Ended is when its end was seen, with ExitCode, or when Start failed, with
	// Error.
	Ended    time.Time `json:"ended,omitzero"`
	ExitCode int       `json:"exit_code,omitempty"`
	Error    string    `json:"error,omitempty"`
	OOM      bool      `json:"oom,omitempty"`
	// Stopped means that it was killed through the engine: the policy does not start
	// it again.
	Stopped bool `json:"stopped,omitempty"`
	// Restarts counts consecutive restarts by its policy.
	Restarts int `json:"restarts,omitempty"`
}

const stateFile = "state.json"

// readState returns the zero value if there is no file yet.
func readState(dir string) (state, error) {
	var s state
	if dir == "" {
		return s, nil // another client made it
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

// writeState replaces the file atomically. It fails for a container that was removed
// meanwhile, and makes no directory.
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

// fullID is the form of the ids that Create returns.
var fullID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })

// find returns a container by its id or name.
func (e *Engine) find(ctx context.Context, id string) (containers.Container, error) {
	store := e.api.ContainerService()
	if fullID().MatchString(id) {
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
