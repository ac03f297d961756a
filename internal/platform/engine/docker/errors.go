package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// fail translates an error of the client into one of package engine, and nil into
// nil. doing says what the call was.
func (e *Engine) fail(ctx context.Context, err error, doing string, args ...any) error {
	doing = fmt.Sprintf(doing, args...)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		// The client's own error of the cut connection is left out.
		return engine.Unanswered(ctx, doing)
	case isDown(err):
		return holdfast.WithHint(fmt.Errorf("%s: %w at %s: %w", doing, holdfast.ErrEngine, e.host, err), hintDown(err))
	}
	if kind := kindOf(err); kind != nil {
		return fmt.Errorf("%s: %w: %w", doing, kind, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// kindOf returns the error of package engine for the engine's answer, or nil. The engine
// answers 404 for images, containers, networks and routes alike; only the message
// shows which (moby, daemon/images/image.go ErrImageDoesNotExist and
// daemon/container.go containerNotFound).
func kindOf(err error) error {
	message := strings.ToLower(err.Error())
	switch {
	case errdefs.IsNotFound(err) && strings.Contains(message, "no such image"):
		return engine.ErrNoImage
	// The image was removed within the creation of a container: the engine takes no lease on
	// its layers (moby, daemon/containerd/image_snapshot.go createLayer; docs/gc.md). The code
	// is 500 (daemon/create.go).
	case strings.Contains(message, "parent snapshot ") && strings.Contains(message, " does not exist"):
		return engine.ErrNoImage
	case errdefs.IsNotFound(err) && strings.Contains(message, "no such container"):
		return holdfast.ErrNotFound
	// The engine ended within an earlier start of the container, and left its container in
	// containerd (libcontainerd, remote/client.go), its endpoint of a network (libnetwork,
	// network.go) or its task (containerd).
	case strings.HasSuffix(message, ": id already in use"), message == "id already in use",
		strings.Contains(message, "endpoint with name") && strings.Contains(message, "already exists in network"),
		strings.Contains(message, "task ") && strings.HasSuffix(message, ": already exists"):
		return engine.ErrInterrupted
	case errdefs.IsConflict(err) && strings.Contains(message, "already in use"):
		return engine.ErrConflict
	}
	return nil
}

// isDown reports whether err means that the engine does not run, or stopped in the
// middle of an answer.
func isDown(err error) bool {
	var op *net.OpError
	return client.IsErrConnectionFailed(err) || errdefs.IsUnavailable(err) || errors.As(err, &op) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || isEnding(err) || isOther(err)
}

// isOther reports whether err shows that the engine is another one than that with which the
// client has agreed on a version of the API: it was upgraded or downgraded. The next call uses
// the version of its answer (moby, daemon/server/middleware/version.go versionUnsupportedError).
func isOther(err error) bool {
	message := err.Error()
	return errdefs.IsInvalidArgument(err) && strings.Contains(message, "client version ") &&
		(strings.Contains(message, " is too new. Maximum supported API version is ") || strings.Contains(message, " is too old. Minimum supported API version is "))
}

// isEnding reports whether err shows that the engine is shutting down. It still answers
// then, after it has closed its connection to containerd (google.golang.org/grpc,
// ErrClientConnClosing and internal/transport, ErrConnClosing) and the database of
// networks, whose path is then empty (libnetwork, datastore and boltdb).
func isEnding(err error) bool {
	message := err.Error()
	return strings.Contains(message, "grpc: the client connection is closing") || strings.Contains(message, "transport is closing: unavailable") ||
		strings.Contains(message, "failed to update store for object type") && strings.HasSuffix(message, "open : no such file or directory")
}

func hintDown(err error) string {
	message := strings.ToLower(err.Error())
	switch {
	case isOther(err):
		return "the engine was upgraded or downgraded: try again, or use a newer Holdfast"
	case strings.Contains(message, "permission denied"):
		return "run as root, or as a member of the group that owns the socket (docker)"
	case strings.Contains(message, "tls") || strings.Contains(message, "certificate"):
		return "the TLS handshake with the engine failed: check the CA, the certificate and the key on both sides"
	}
	return "is the Docker daemon running there? Start it (systemctl start docker), or name its address in DOCKER_HOST"
}
