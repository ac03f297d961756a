package containerd

import (
	"context"
	"net"
	"time"

	"github.com/containerd/containerd/v2/defaults"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
)

// dialTimeout bounds one attempt to connect. A socket on this host answers at once,
// or its daemon is stopped.
const dialTimeout = 5 * time.Second

// dial makes the connection object without connecting. It does not use the client's
// own dialer, which waits for a missing socket instead of returning an error.
func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: 3 * time.Second},
			MinConnectTimeout: dialTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(defaults.DefaultMaxRecvMsgSize), grpc.MaxCallSendMsgSize(defaults.DefaultMaxSendMsgSize)),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption) error {
			tryNow(ctx, cc, socket)
			return call(ctx, method, req, reply, cc, o...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			tryNow(ctx, cc, socket)
			return open(ctx, d, cc, method, o...)
		}),
	)
}

// tryNow ends the back-off of a connection if the daemon listens. Otherwise calls
// would fail for seconds after the daemon is back.
func tryNow(ctx context.Context, cc *grpc.ClientConn, socket string) {
	if cc.GetState() != connectivity.TransientFailure {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	try, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return
	}
	try.Close()
	cc.ResetConnectBackoff()
	// The state stays TransientFailure until the connection is up (gRPC, A62).
	cc.WaitForStateChange(ctx, connectivity.TransientFailure)
}
