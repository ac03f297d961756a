package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"

	"holdfast/internal/platform/engine"
)

// store is the containerd of an engine with the containerd image store. The engine's API
// reports its address since version 1.46 (Docker 27).
type store struct {
	*containerd.Client
	namespace   string
	snapshotter string
}

// connectLimit bounds the connection to a containerd.
const connectLimit = 3 * time.Second

// openStore connects to the engine's containerd. It returns nil if the engine has another
// image store, or if its containerd is not on this host. The caller closes it.
func (e *Engine) openStore(ctx context.Context) (*store, error) {
	if !strings.HasPrefix(e.host, "unix://") || versions.LessThan(e.api().ClientVersion(), "1.46") {
		return nil, nil
	}
	res, err := e.api().Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, e.fail(ctx, err, "find the engine's containerd")
	}
	at := res.Info.Containerd
	if imageStore(res.Info.DriverStatus) != engine.ContainerdStore || at == nil {
		return nil, nil
	}
	path := strings.TrimPrefix(at.Address, "unix://")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the client would wait for the socket
	}
	api, err := containerd.New(path, containerd.WithDefaultNamespace(at.Namespaces.Containers), containerd.WithTimeout(connectLimit))
	if err != nil {
		return nil, fmt.Errorf("connect to the engine's containerd at %s: %w", path, err)
	}
	return &store{Client: api, namespace: at.Namespaces.Containers, snapshotter: res.Info.Driver}, nil
}
