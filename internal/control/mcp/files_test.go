package mcp_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/control/mcp"
)

type content struct {
	Size, Offset int
	Next         int `json:"next_offset"`
	Content      string
}

type listing struct {
	Files []struct {
		Name, Type, Mode, Target string
		Size                     int
	}
	Next string
	More bool
}

// A model reads files in parts and directories in pages, and with leave changes them.
func TestFiles(t *testing.T) {
	d := newDesk(t, mcp.Options{AllowWrite: true})
	d.backend.Files = t.TempDir()
	c := d.connect()
	call(t, c, "session_start", args{"key": "alice"}, &struct{}{})
	of := func(with args) args { with["key"] = "alice"; return with }

	call(t, c, "file_make_directory", of(args{"path": "/work/src", "parents": true}), &struct{ Name string }{})
	for i := range 5 {
		call(t, c, "file_write", of(args{"path": fmt.Sprintf("/work/%d.txt", i), "content": strings.Repeat("é", i), "mode": "600"}), nil)
	}
	var one, two listing
	call(t, c, "file_list", of(args{"path": "/work", "limit": 4}), &one)
	call(t, c, "file_list", of(args{"path": "/work", "limit": 4, "after": one.Next}), &two)
	if len(one.Files) != 4 || one.Next != "3.txt" || one.Files[3].Size != 6 || one.Files[0].Mode != "0600" || len(two.Files) != 2 || two.Files[1].Name != "src" || two.Next != "" || two.More {
		t.Errorf("%+v, %+v", one, two)
	}
	var part content
	call(t, c, "file_read", of(args{"path": "/work/4.txt", "max_bytes": 5}), &part)
	if part.Content != "éé" || part.Next != 4 || part.Size != 8 {
		t.Errorf("a part: %+v", part)
	}
	if call(t, c, "file_read", of(args{"path": "/work/4.txt", "offset": -2}), &part); part.Content != "é" || part.Offset != 6 || part.Next != 8 {
		t.Errorf("the end: %+v", part)
	}
	if call(t, c, "file_read", of(args{"path": "/work/4.txt", "offset": 8}), &part); part.Content != "" || part.Next != 8 {
		t.Errorf("after the end: %+v", part)
	}

	raw := []byte("a\x00\xff\x1b[2J")
	call(t, c, "file_write", of(args{"path": "/raw", "content": base64.StdEncoding.EncodeToString(raw), "encoding": "base64"}), nil)
	if b, err := os.ReadFile(filepath.Join(d.backend.Files, "raw")); err != nil || string(b) != string(raw) {
		t.Errorf("%q, %v", b, err)
	}
	if call(t, c, "file_read", of(args{"path": "/raw"}), &part); part.Content != "a\uFFFD\uFFFD\uFFFD[2J" {
		t.Errorf("as text: %+v", part)
	}
	if call(t, c, "file_read", of(args{"path": "/raw", "encoding": "base64"}), &part); part.Content != base64.StdEncoding.EncodeToString(raw) {
		t.Errorf("as it is: %+v", part)
	}

	call(t, c, "file_move", of(args{"path": "/raw", "to": "/work/raw"}), nil)
	call(t, c, "file_remove", of(args{"path": "/work/0.txt"}), nil)
	var about struct{ Type string }
	if call(t, c, "file_stat", of(args{"path": "/work"}), &about); about.Type != "directory" {
		t.Errorf("%+v", about)
	}
	if left, err := filepath.Glob(filepath.Join(d.backend.Files, "work", "*")); err != nil || len(left) != 6 {
		t.Errorf("%v, %v", left, err)
	}
	for name, bad := range map[string]struct {
		tool string
		with args
		want string
	}{
		"no file":       {"file_read", args{"path": "/nothing"}, "not found"},
		"not absolute":  {"file_stat", args{"path": "work"}, "pattern"},
		"too much":      {"file_read", args{"path": "/raw", "max_bytes": 1 << 20}, "max_bytes"},
		"a large write": {"file_write", args{"path": "/raw", "content": strings.Repeat("x", 257<<10)}, "content"},
		"no base64":     {"file_write", args{"path": "/raw", "content": "?", "encoding": "base64"}, "illegal base64"},
		"bad mode":      {"file_write", args{"path": "/raw", "content": "", "mode": "rwx"}, "mode"},
		"full":          {"file_write", args{"path": "/full", "content": "x"}, "error: "},
		"exists":        {"file_move", args{"path": "/work/1.txt", "to": "/work/2.txt"}, "exists"},
		"not empty":     {"file_remove", args{"path": "/work"}, "error: "},
	} {
		if text, failed := call(t, c, bad.tool, of(bad.with), nil); !failed || !strings.Contains(text, bad.want) {
			t.Errorf("%s: failed %v, %q", name, failed, text)
		}
	}
	if log := d.logged(); strings.Count(log, "act=readFile") != 4 || !strings.Contains(log, "via=mcp session=alice path=/raw to=/work/raw") {
		t.Errorf("audit log %s", log)
	}
}
