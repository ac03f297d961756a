package keyfile

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestSecretsAreForTheirOwnerOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	write(t, path, "x")
	for mode, ok := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: false, 0o604: false, 0o610: false, 0o602: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := ReadSecret(path)
		if (err == nil) != ok {
			t.Errorf("mode %o: %v", mode, err)
		}
		if !ok && holdfast.HintOf(err) != "chmod 600 "+path {
			t.Errorf("mode %o: hint %q", mode, holdfast.HintOf(err))
		}
		if _, err := Read(path); err != nil {
			t.Errorf("mode %o, as no secret: %v", mode, err)
		}
	}
}

func TestOnlyFilesOfSomeSizeAreRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	write(t, path, strings.Repeat("x", MaxSize))
	if b, err := Read(path); err != nil || len(b) != MaxSize {
		t.Errorf("the largest: %d bytes, %v", len(b), err)
	}
	write(t, path, strings.Repeat("x", MaxSize+1))
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("too large: %v", err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: %v", err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(pipe); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a pipe: %v", err)
	}
	if _, err := Read(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
}

func TestWatchedFollowsItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		load := func() (string, error) {
			b, err := Read(path)
			if err == nil && string(b) == "bad" {
				err = errors.New("it is bad")
			}
			return string(b), err
		}
		logger := slog.New(slog.NewTextHandler(&log, nil))
		if _, err := Watch(logger, load, path); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the first time it is missing: %v", err)
		}
		write(t, path, "one")
		w, err := Watch(logger, load, path)
		if err != nil {
			t.Fatal(err)
		}
		step := func(what, want string) {
			t.Helper()
			time.Sleep(Every)
			for range 3 {
				if got := w.Get(); got != want {
					t.Errorf("%s: got %q, want %q", what, got, want)
				}
			}
		}
		step("unchanged", "one")
		write(t, path, "two")
		if got := w.Get(); got != "one" {
			t.Errorf("checked again too early: %q", got)
		}
		step("changed", "two")
		write(t, path, "bad")
		step("bad", "two")
		step("still bad", "two")
		if n := strings.Count(log.String(), "it is bad"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, log.String())
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		step("gone", "two")
		write(t, path, "three")
		step("good again", "three")
	})
}

func TestWatchedIsForManyGoroutines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, "one")
	synctest.Test(t, func(t *testing.T) {
		w, err := Watch(slog.New(slog.DiscardHandler), func() (string, error) {
			b, err := Read(path)
			return string(b), err
		}, path)
		if err != nil {
			t.Fatal(err)
		}
		write(t, path, "two")
		time.Sleep(Every)
		got := make(chan string)
		for range 50 {
			go func() {
				w.Get()
				time.Sleep(time.Millisecond) // concurrent readers have checked by then
				got <- w.Get()
			}()
		}
		for range 50 {
			if s := <-got; s != "two" {
				t.Fatalf("got %q", s)
			}
		}
	})
}
