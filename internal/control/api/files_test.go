package api_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/apitest"
	"holdfast/test/poll"
)

// Files of a session on another node are transferred piece by piece.
func TestPassesFiles(t *testing.T) {
	f := newFleet(t)
	f.n2.Files = t.TempDir()
	f.start(t, f.n2, "bob")
	ctx, text := t.Context(), strings.Repeat("more than a body in JSON may have\n", 100_000)
	if got, err := f.c.WriteFile(ctx, "bob", "/big", holdfast.WriteFile{}, strings.NewReader(text)); err != nil || got.Size != int64(len(text)) {
		t.Fatalf("%+v, %v", got, err)
	}
	var all, rest, archive bytes.Buffer
	if err := f.c.ReadFile(ctx, "bob", "/big", 0, &all); err != nil || all.String() != text {
		t.Errorf("%d bytes, %v", all.Len(), err)
	}
	if err := f.c.ReadFile(ctx, "bob", "/big", int64(len(text)-5), &rest); err != nil || rest.String() != "have\n" {
		t.Errorf("%q, %v", &rest, err)
	}
	if err := f.c.PackFiles(ctx, "bob", "/big", &archive); err != nil || archive.Len() < len(text) {
		t.Errorf("%d bytes, %v", archive.Len(), err)
	}
	if n, err := f.c.UnpackFiles(ctx, "bob", "/", holdfast.UnpackFiles{}, &archive); err != nil || n.Bytes != int64(len(text)) {
		t.Errorf("%+v, %v", n, err)
	}
	if list, err := f.c.ListFiles(ctx, "bob", "/", 0); err != nil || len(list.Files) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	var kinds []holdfast.FileEventKind
	err := f.c.WatchFiles(ctx, "bob", "/", false, func(e holdfast.FileEvent) error {
		kinds = append(kinds, e.Kind)
		return nil
	})
	if err != nil || len(kinds) != 3 {
		t.Errorf("%v, %v", kinds, err)
	}
	if _, err := f.c.WriteFile(ctx, "bob", "/full", holdfast.WriteFile{}, strings.NewReader(text)); !errors.Is(err, holdfast.ErrNoSpace) {
		t.Errorf("a full disk: %v", err)
	}
	if _, err := f.c.WriteFile(ctx, "carol", "/x", holdfast.WriteFile{}, strings.NewReader(text)); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("no session: %v", err)
	}
	// Half a body makes no file.
	broken := errors.New("broken")
	if _, err := f.c.WriteFile(ctx, "bob", "/half", holdfast.WriteFile{}, io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("a body that breaks: %v", err)
	}
	poll.Until(t, "the incomplete file is gone", func() bool {
		list, err := f.c.ListFiles(ctx, "bob", "/", 0)
		return err == nil && len(list.Files) == 1
	})
}

// Ranges are those of RFC 9110, 14.
func TestRangesOfFiles(t *testing.T) {
	b := &apitest.Backend{Files: t.TempDir()}
	if err := os.WriteFile(filepath.Join(b.Files, "f"), []byte("0123456789"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := b.StartSession(t.Context(), "alice", ""); err != nil {
		t.Fatal(err)
	}
	s := serve(t, b, api.Options{Admin: true})
	for _, c := range []struct {
		header, want, at string
		status           int
	}{
		{"bytes=0-3", "0123", "bytes 0-3/10", 206},
		{"bytes=7-", "789", "bytes 7-9/10", 206},
		{"bytes=-2", "89", "bytes 8-9/10", 206},
		{"bytes=-99", "0123456789", "bytes 0-9/10", 206},
		{"bytes=8-99", "89", "bytes 8-9/10", 206},
		{"bytes=10-", "", "bytes */10", 416},
		{"bytes=-0", "", "bytes */10", 416},
		{"bytes=3-2", "0123456789", "", 200},
		{"bytes=0-1,3-4", "0123456789", "", 200},
		{"lines=1-2", "0123456789", "", 200},
	} {
		r := call(t, s, "GET", "/v1/sessions/alice/files?path=/f", "", "Range: "+c.header)
		if r.status != c.status || r.header.Get("Content-Range") != c.at || c.status < 300 && r.body != c.want {
			t.Errorf("%s: status %d, %q, %q", c.header, r.status, r.header.Get("Content-Range"), r.body)
		}
	}
	if r := call(t, s, "GET", "/v1/sessions/alice/files?path=/f", "", "Range: bytes=0-3", "If-Range: Thu, 01 Jan 1970 00:00:00 GMT"); r.status != 200 {
		t.Errorf("a range of another version: status %d", r.status)
	}
}
