package filetree

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unpack unpacks entries below a new directory, which it returns. Regular files contain
// "text".
func unpack(t *testing.T, entries ...tar.Header) (string, error) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		h.Mode = 0o4755
		if h.Typeflag == tar.TypeReg {
			h.Size = 4
		}
		err := w.WriteHeader(&h)
		if err == nil && h.Size > 0 {
			_, err = w.Write([]byte("text"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	inside := filepath.Join(dir, "in")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(inside)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	_, err = Unpack(t.Context(), root, tar.NewReader(&b), Unpacking{})
	return dir, err
}

// No entry of an archive leaves its directory, whatever came before it.
func TestUnpackStaysInside(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	for name, entries := range map[string][]tar.Header{
		"parent":               {file("../x")},
		"parent in the middle": {file("a/../../x")},
		"relative link":        {link("l", ".."), file("l/x")},
		"absolute link":        {link("l", "/tmp"), file("l/x")},
		"link of a link":       {link("a", "b"), link("b", ".."), file("a/x")},
		"hard link":            {{Typeflag: tar.TypeLink, Name: "x", Linkname: "../outside"}},
		"hard link by a link":  {link("l", ".."), {Typeflag: tar.TypeLink, Name: "x", Linkname: "l/outside"}},
		"directory in a link":  {link("l", ".."), {Typeflag: tar.TypeDir, Name: "l/x/"}},
	} {
		dir, err := unpack(t, entries...)
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("%s: %v, %v", name, left, err)
		}
	}
	// What looks like it, and stays inside.
	dir, err := unpack(t, link("l", "../../x"), file("l"), link("m", "sub"), tar.Header{Typeflag: tar.TypeDir, Name: "sub/"}, file("m/x"), file("/abs"), tar.Header{Typeflag: tar.TypeLink, Name: "hard", Linkname: "sub/x"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"l", "sub/x", "abs", "hard"} {
		fi, err := os.Lstat(filepath.Join(dir, "in", name))
		if err != nil || !fi.Mode().IsRegular() || fi.Mode()&fs.ModeSetuid != 0 {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
}

// Pack and Unpack copy a tree with its links, modes and times.
func TestTreeIsCopied(t *testing.T) {
	from := t.TempDir()
	at := time.Unix(1_700_000_000, 5)
	err := errors.Join(
		os.MkdirAll(filepath.Join(from, "a", "b"), 0o750),
		os.WriteFile(filepath.Join(from, "a", "b", "f"), []byte("text"), 0o640),
		os.Link(filepath.Join(from, "a", "b", "f"), filepath.Join(from, "a", "hard")),
		os.Symlink("b/f", filepath.Join(from, "a", "soft")),
		unix.Mkfifo(filepath.Join(from, "a", "pipe"), 0o600),
		os.WriteFile(filepath.Join(from, "a", strings.Repeat("n", 255)), nil, 0o600),
		os.Chtimes(filepath.Join(from, "a", "b", "f"), at, at),
		os.Chtimes(filepath.Join(from, "a", "b"), at, at),
	)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(from, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	packed, err := Pack(t.Context(), w, f, "copy", Packing{})
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	root, err := os.OpenRoot(to)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	unpacked, err := Unpack(t.Context(), root, tar.NewReader(&b), Unpacking{})
	if err != nil || packed != unpacked || packed.Entries != 7 || packed.Bytes != 4 {
		t.Errorf("%+v, %+v, %v", packed, unpacked, err)
	}
	one, err1 := os.Stat(filepath.Join(to, "copy", "soft"))
	two, err2 := os.Stat(filepath.Join(to, "copy", "hard"))
	dir, err3 := os.Stat(filepath.Join(to, "copy", "b"))
	pipe, err4 := os.Stat(filepath.Join(to, "copy", "pipe"))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(one, two) || !one.ModTime().Equal(at) || one.Mode() != 0o640 || !dir.ModTime().Equal(at) || dir.Mode().Perm() != 0o750 || pipe.Mode()&fs.ModeNamedPipe == 0 {
		t.Errorf("%v, %v, %v, %v", one, two, dir, pipe)
	}
}
