package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The same program gives the same bytes, and both tags name it.
func TestSameBytes(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("a program"), 0o700); err != nil {
		t.Fatal(err)
	}
	var first []byte
	for range 20 { // a random order would differ in one of them
		out := filepath.Join(dir, "out")
		if err := write(out, "1.0.0+2", "arm64", []file{{"usr/bin/holdfast", program, 0o755}}, time.Unix(1e9, 0).UTC()); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = got
		}
		if !bytes.Equal(got, first) {
			t.Fatal("the same program gave different bytes")
		}
		for _, tag := range []string{"holdfast:latest", "holdfast:1.0.0-2"} {
			ref, err := name.NewTag(tag)
			if err != nil {
				t.Fatal(err)
			}
			img, err := tarball.ImageFromPath(out, &ref)
			if err != nil {
				t.Fatalf("%s: %v", tag, err)
			}
			if c, err := img.ConfigFile(); err != nil || c.Architecture != "arm64" {
				t.Errorf("%s: %+v, %v", tag, c, err)
			}
		}
	}
}
