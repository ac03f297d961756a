package containerd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// registryError is an error of a registry or of the connection to it. It never means
// that the engine is down.
type registryError struct{ err error }

func (e registryError) Error() string { return e.err.Error() }
func (e registryError) Unwrap() error { return e.err }

// fail translates an error of the client into one of package engine, and nil into
// nil. doing says what the call was.
func (e *Engine) fail(ctx context.Context, err error, doing string, args ...any) error {
	doing = fmt.Sprintf(doing, args...)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return engine.Unanswered(ctx, doing)
	case errors.Is(err, holdfast.ErrEngine):
	case isDown(err):
		return holdfast.WithHint(fmt.Errorf("%s: %w at %s: %w", doing, holdfast.ErrEngine, e.cfg.Host, err), hintDown(err))
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// isDown reports whether err means that the engine does not run, or stopped in the
// middle of an answer. gRPC reports that as Unavailable, which the daemon itself does
// not return for the calls of this package.
func isDown(err error) bool {
	var registry registryError
	if errors.As(err, &registry) {
		return false
	}
	return errdefs.IsUnavailable(err) || status.Code(err) == codes.Unavailable || errors.Is(err, holdfast.ErrEngine)
}

func hintDown(err error) string {
	if strings.Contains(strings.ToLower(err.Error()), "permission denied") {
		return "run as root"
	}
	return "is containerd running there? Start it (systemctl start containerd), or name its address in engine.host"
}

// isGone reports whether err means that the object does not exist.
func isGone(err error) bool { return errdefs.IsNotFound(err) || errors.Is(err, holdfast.ErrNotFound) }
