// Command holdfast is the agent that runs on each container host and the
// command line that people use.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"holdfast/internal/api"
	"holdfast/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(cli.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, deps()))
}

// deps joins the command line to the parts that are no calls of an agent.
func deps() cli.Deps {
	return cli.Deps{Version: api.BuildVersion()}
}
