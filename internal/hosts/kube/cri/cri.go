// Package cri asks a node's container runtime what Kubernetes runs there, over the unix
// socket that the kubelet uses (runtime.v1). It only lists.
package cri

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// maxAnswer is the most that an answer may have, in bytes: as the kubelet allows.
const maxAnswer = 16 << 20

// Sockets are where runtimes listen by default, in the order in which they are tried.
func Sockets() []string {
	return []string{"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock", "/run/k3s/containerd/containerd.sock"}
}

// Runtime is a node's container runtime. Its methods may be called from any goroutine.
type Runtime struct {
	conn   *grpc.ClientConn
	client runtime.RuntimeServiceClient
	images runtime.ImageServiceClient
	socket string
}

// Open returns the runtime behind a unix socket. It connects at the first call,
// and again after the runtime restarts. The caller closes it.
func Open(socket string) (*Runtime, error) {
	path := strings.TrimPrefix(socket, "unix://")
	if !filepath.IsAbs(path) {
		return nil, holdfast.WithHint(fmt.Errorf("%q is not the path of a unix socket", socket), "such as unix:///run/containerd/containerd.sock")
	}
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), // a unix socket, which only root may use
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)), grpc.WithNoProxy())
	if err != nil {
		return nil, err
	}
	return &Runtime{conn: conn, client: runtime.NewRuntimeServiceClient(conn), images: runtime.NewImageServiceClient(conn), socket: path}, nil
}

// Close frees the connection. No call may follow.
func (r *Runtime) Close() error { return r.conn.Close() }

// Version returns the runtime's name and version, such as containerd 1.6.20.
func (r *Runtime) Version(ctx context.Context) (string, error) {
	v, err := r.client.Version(ctx, &runtime.VersionRequest{})
	if err != nil {
		return "", r.failed("version", err)
	}
	return v.RuntimeName + " " + v.RuntimeVersion, nil
}

func (r *Runtime) failed(what string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%w: the container runtime behind %s: %s: %w", holdfast.ErrEngine, r.socket, what, err)
}

// List returns the pods' containers and sandboxes that carry all the labels (a
// value of "" matches any), running or not. It fills ID, Name, Image, Labels,
// State and Created. The labels io.kubernetes.* identify the pod and the
// container.
func (r *Runtime) List(ctx context.Context, labels map[string]string) ([]engine.Container, error) {
	found, err := r.client.ListContainers(ctx, &runtime.ListContainersRequest{})
	if err != nil {
		return nil, r.failed("list containers", err)
	}
	boxes, err := r.client.ListPodSandbox(ctx, &runtime.ListPodSandboxRequest{})
	if err != nil {
		return nil, r.failed("list pods", err)
	}
	var list []engine.Container
	add := func(c engine.Container) {
		for k, v := range labels {
			if have, ok := c.Labels[k]; !ok || v != "" && have != v {
				return
			}
		}
		list = append(list, c)
	}
	for _, c := range found.Containers {
		add(engine.Container{
			ID: c.Id, Name: c.GetMetadata().GetName(), Image: c.GetImage().GetImage(), Labels: c.Labels, State: containerState(c.State), Created: time.Unix(0, c.CreatedAt),
		})
	}
	for _, b := range boxes.Items {
		state := "exited"
		if b.State == runtime.PodSandboxState_SANDBOX_READY {
			state = "running"
		}
		add(engine.Container{ID: b.Id, Name: "POD", Labels: b.Labels, State: state, Created: time.Unix(0, b.CreatedAt)})
	}
	return list, nil
}

func containerState(s runtime.ContainerState) string {
	switch s {
	case runtime.ContainerState_CONTAINER_CREATED:
		return "created"
	case runtime.ContainerState_CONTAINER_RUNNING:
		return "running"
	}
	return "exited"
}
