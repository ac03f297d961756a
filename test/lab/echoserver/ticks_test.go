package echoserver_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/test/check"
	"holdfast/test/lab/echoserver"
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
	t.Setenv("HOLDFAST_SESSION", "alice")
	if err := echoserver.Run(t.Context(), "127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), "ticks") {
		t.Errorf("it ended with %v", err)
	}
}

// A server of a machine that goes away ends, and a later one does not start. Servers of the
// machine's next life start.
func TestServersGoWithTheirMachine(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(echoserver.TicksEnv, dir)
	t.Setenv(echoserver.MachineEnv, "m1")
	t.Setenv("HOLDFAST_SESSION", "alice")
	t.Setenv("HOLDFAST_EPOCH", "42")
	done := make(chan error, 1)
	go func() { done <- echoserver.Run(t.Context(), "127.0.0.1:0") }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if lives, err := check.ReadLives(dir); err != nil || time.Now().After(end) {
			t.Fatalf("%v, %v", lives, err)
		} else if len(lives) == 1 && lives[0].Ticks > 1 {
			break
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "m1"+echoserver.GoneSuffix), []byte("42"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "went away") {
		t.Errorf("it ended with %v", err)
	}
	if err := echoserver.Run(t.Context(), "127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), "went away") {
		t.Errorf("one that came too late ended with %v", err)
	}
	t.Setenv("HOLDFAST_EPOCH", "43")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := echoserver.Run(ctx, "127.0.0.1:0"); err != nil {
		t.Errorf("one of the machine's next life ended with %v", err)
	}
}
