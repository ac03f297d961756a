// Command testserver runs package echoserver, with flags for misbehavior. It is the
// session image of tests.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"holdfast/test/lab/echoserver"
)

func main() {
	// A context that is done ends the server; pid 1 has no default handlers.
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run reads the flags. The default of each is an environment variable, for images with a
// fixed command.
func run(ctx context.Context) error {
	addr := flag.String("addr", env("TESTSERVER_ADDR", ":8080"), "listen on `host:port`")
	delay := flag.Duration("delay", duration("TESTSERVER_DELAY"), "wait before listening")
	life := flag.Duration("life", duration("TESTSERVER_LIFE"), "exit with code 3 after this time; 0 is never")
	fail := flag.String("fail", env("TESTSERVER_FAIL", ""), "print this `message` and exit with code 1 at once")
	flag.Parse()
	if *fail != "" {
		return fmt.Errorf("told to fail: %s", *fail)
	}
	if *life > 0 {
		time.AfterFunc(*life, func() { os.Exit(3) })
	}
	select {
	case <-time.After(*delay):
	case <-ctx.Done():
		return nil
	}
	fmt.Println("listening on", *addr)
	return echoserver.Run(ctx, *addr)
}

func env(key, fallback string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return fallback
}

// duration returns the time in an environment variable, 0 if it is not set.
func duration(key string) time.Duration {
	d, _ := time.ParseDuration(os.Getenv(key))
	return d
}
