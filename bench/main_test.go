package bench

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"testing"

	"holdfast/internal/sessions/guardian"
	"holdfast/test/lab/labtest"
)

// childArg makes the test binary a child of the gateway's bench.
const childArg = "bench-gateway-child"

// TestMain is what the benches start as children of their own too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case childArg:
			if err := GatewayChild(context.Background(), os.Args[2:], os.Stdin, os.Stdout); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		case roleDoctor:
			os.Exit(doctorChild(os.Args[2:]))
		case "guardian":
			syscall.Exit(guardian.Main(os.Args[2], slog.New(slog.NewTextHandler(os.Stderr, nil))))
		}
	}
	os.Exit(labtest.Main(m))
}
