package echoserver_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/check"
	"holdfast/internal/lab/echoserver"
)

func TestTicksAreALife(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(echoserver.TicksEnv, dir)
	t.Setenv("HOLDFAST_SESSION", "alice")
	t.Setenv("HOLDFAST_EPOCH", "42")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- echoserver.Run(ctx, "127.0.0.1:0") }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if lives, err := check.ReadLives(dir); err != nil || time.Now().After(end) {
			t.Fatalf("%v, %v", lives, err)
		} else if len(lives) == 1 && lives[0].Ticks > 2 {
			break
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	lives, err := check.ReadLives(dir)
	if err != nil || len(lives) != 1 || lives[0].Key != "alice" || lives[0].Epoch != 42 || lives[0].First >= lives[0].Last {
		t.Errorf("%v, %v", lives, err)
	}
}

func TestServerThatCannotTickEnds(t *testing.T) {
	t.Setenv(echoserver.TicksEnv, filepath.Join(t.TempDir(), "none"))
	if err := echoserver.Run(t.Context(), "127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), "ticks") {
		t.Errorf("it ended with %v", err)
	}
}
