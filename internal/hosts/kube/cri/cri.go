// Package cri queries the containers, pods and images of a node's container runtime, over
// the unix socket that the kubelet uses (runtime.v1). It changes nothing.
package cri

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// maxAnswer is the maximum size of an answer in bytes, as in the kubelet.
const maxAnswer = 16 << 20

// Sockets returns the default sockets of container runtimes, in the order in which they are
// tried.
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
	boxes, containers, err := r.Pods(ctx)
	if err != nil {
		return nil, err
	}
	var list []engine.Container
	for _, c := range containers {
		list = append(list, engine.Container{ID: c.ID, Name: c.Name, Image: c.Image, Labels: c.Labels, State: c.State, Created: c.Created})
	}
	for _, b := range boxes {
		state := "exited"
		if b.Ready {
			state = "running"
		}
		list = append(list, engine.Container{ID: b.ID, Name: "POD", Labels: b.Labels, State: state, Created: b.Created})
	}
	return slices.DeleteFunc(list, func(c engine.Container) bool {
		for k, v := range labels {
			if have, ok := c.Labels[k]; !ok || v != "" && have != v {
				return true
			}
		}
		return false
	}), nil
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
