// Command holdfast is the agent that runs on each container host, and its command line.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"holdfast/internal/control/cli"
)

// version is set by the build.
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(cli.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, deps()))
}
