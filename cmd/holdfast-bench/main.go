// Command holdfast-bench measures Holdfast beside its peers on this machine.
// `holdfast bench NAME` runs it where it is installed.
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
	os.Exit(cli.ToolMain(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, tool(version)))
}
