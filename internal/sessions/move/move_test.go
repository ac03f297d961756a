package move

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"holdfast"
)

var label = Label{Key: "alice", Epoch: 7, Template: "web", TakenAt: time.Unix(1, 0).UTC()}

const most = 1 << 20

// image makes a directory with the files that runsc writes.
func image(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"checkpoint.img": "state", "pages.img": strings.Repeat("page", 50_000), "pages_meta.img": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func packed(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Pack(&b, label, image(t)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// same compares the files in dir with those of image.
func same(t *testing.T, dir string) {
	t.Helper()
	want := image(t)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%d files, %v", len(entries), err)
	}
	for _, e := range entries {
		a, errA := os.ReadFile(filepath.Join(want, e.Name()))
		b, errB := os.ReadFile(filepath.Join(dir, e.Name()))
		fi, _ := e.Info()
		if err := errors.Join(errA, errB); err != nil || !bytes.Equal(a, b) || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %d bytes of %d, mode %v, %v", e.Name(), len(b), len(a), fi.Mode(), err)
		}
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
}

func absent(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s exists: %v", path, err)
	}
}

func TestPacksAndUnpacks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	l, err := Unpack(bytes.NewReader(packed(t)), dir, most, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := label
	want.Bytes = 200_005
	if l != want {
		t.Errorf("got %+v, want %+v", l, want)
	}
	same(t, dir)
}

// A truncated image leaves no files.
func TestTornImages(t *testing.T) {
	whole := packed(t)
	end := bytes.LastIndex(whole, []byte(endName+"\x00"))
	for n := 0; n < end+512; n += 509 {
		dir := filepath.Join(t.TempDir(), "out")
		if _, err := Unpack(bytes.NewReader(whole[:n]), dir, most, nil); !errors.Is(err, ErrTorn) {
			t.Fatalf("%d of %d bytes: %v", n, len(whole), err)
		}
		absent(t, dir)
	}
}

func TestRefusesImages(t *testing.T) {
	write := func(f func(w *tar.Writer)) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		f(w)
		w.Close()
		return b.Bytes()
	}
	begin := func(w *tar.Writer, text string) { packText(w, labelName, []byte(text)) }
	const good = `{"key":"alice","epoch":7,"template":"web","taken_at":"2026-01-01T00:00:00Z","bytes":4}`
	for name, c := range map[string]struct {
		stream []byte
		want   error
	}{
		"no label":  {write(func(w *tar.Writer) { packText(w, "pages.img", []byte("data")) }), ErrTorn},
		"odd label": {write(func(w *tar.Writer) { begin(w, `{"key":"alice","epoch":7,"more":1}`) }), ErrTorn},
		"no key":    {write(func(w *tar.Writer) { begin(w, `{"key":"../x","epoch":7}`) }), ErrTorn},
		"no epoch":  {write(func(w *tar.Writer) { begin(w, `{"key":"alice"}`) }), ErrTorn},
		"too big":   {write(func(w *tar.Writer) { begin(w, strings.Replace(good, `:4}`, `:2000000}`, 1)) }), ErrTooBig},
		"path":      {write(func(w *tar.Writer) { begin(w, good); packText(w, "../pages.img", []byte("data")) }), ErrTorn},
		"directory": {write(func(w *tar.Writer) {
			begin(w, good)
			w.WriteHeader(&tar.Header{Name: "dir", Typeflag: tar.TypeDir})
		}), ErrTorn},
		"link": {write(func(w *tar.Writer) {
			begin(w, good)
			w.WriteHeader(&tar.Header{Name: "pages.img", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"})
		}), ErrTorn},
		"more bytes than the label says": {write(func(w *tar.Writer) { begin(w, good); packText(w, "pages.img", []byte("data and more")) }), ErrTorn},
		"fewer bytes than the label says": {write(func(w *tar.Writer) {
			begin(w, good)
			packText(w, "pages.img", []byte("dat"))
			packText(w, endName, nil)
		}), ErrTorn},
		"data after the end": {write(func(w *tar.Writer) {
			begin(w, good)
			packText(w, "pages.img", []byte("data"))
			packText(w, endName, nil)
			packText(w, "more", nil)
		}), ErrTorn},
		"twice": {write(func(w *tar.Writer) {
			begin(w, good)
			packText(w, "pages.img", []byte("da"))
			packText(w, "pages.img", []byte("ta"))
		}), fs.ErrExist},
	} {
		dir := filepath.Join(t.TempDir(), "out")
		if _, err := Unpack(bytes.NewReader(c.stream), dir, most, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		absent(t, dir)
	}
	dir, no := filepath.Join(t.TempDir(), "out"), errors.New("not accepted")
	if _, err := Unpack(bytes.NewReader(packed(t)), dir, most, func(Label) error { return no }); !errors.Is(err, no) {
		t.Error(err)
	}
	absent(t, dir)
	if err := Pack(io.Discard, label, t.TempDir()); err == nil {
		t.Error("an empty directory was packed")
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add([]byte{})
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	packText(w, labelName, []byte(`{"key":"alice","epoch":7,"bytes":4}`))
	packText(w, "pages.img", []byte("data"))
	packText(w, endName, nil)
	w.Close()
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		dir := filepath.Join(t.TempDir(), "out")
		_, err := Unpack(bytes.NewReader(in), dir, 1<<10, nil)
		if _, statErr := os.Stat(dir); (err == nil) != (statErr == nil) {
			t.Errorf("%v, and %v", err, statErr)
		}
	})
}

func newStore(t *testing.T) (*ImageStore, string, string) {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "store")
	s, err := OpenStore(StoreOptions{Dir: dir, Owner: "n1", MaxImage: most}, key+"\n")
	if err != nil {
		t.Fatal(err)
	}
	return s, dir, key
}

func TestStoreGivesAnImageOnce(t *testing.T) {
	s, dir, _ := newStore(t)
	if err := s.Put(t.Context(), label, image(t)); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), label, image(t)); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second image: %v", err)
	}
	file := filepath.Join(dir, "alice@7")
	sealed, err := os.ReadFile(file)
	if err != nil || bytes.Contains(sealed, []byte("pagepage")) || bytes.Contains(sealed, []byte("alice")) {
		t.Errorf("the file is not encrypted: %v", err)
	}
	if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	if _, err := s.Take(t.Context(), "alice", 8, filepath.Join(t.TempDir(), "x")); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("an image of another epoch: %v", err)
	}
	var got sync.Map
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			out := filepath.Join(t.TempDir(), "out")
			if _, err := s.Take(t.Context(), "alice", 7, out); err == nil {
				got.Store(i, out)
			} else if !errors.Is(err, holdfast.ErrNotFound) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	n := 0
	got.Range(func(_, out any) bool { n++; same(t, out.(string)); return true })
	if n != 1 {
		t.Errorf("%d of 8 got the image, want 1", n)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// A file that was modified, truncated or renamed does not open, and is removed.
func TestStoreRefusesModifiedFiles(t *testing.T) {
	for name, spoil := range map[string]func(path string, b []byte) error{
		"cut":    func(p string, b []byte) error { return os.Truncate(p, int64(len(b)/2)) },
		"end":    func(p string, b []byte) error { return os.Truncate(p, int64(len(b)-1)) },
		"empty":  func(p string, b []byte) error { return os.Truncate(p, 0) },
		"longer": func(p string, b []byte) error { return os.WriteFile(p, append(b, 'x'), 0o600) },
		"flipped": func(p string, b []byte) error {
			b[len(b)/2] ^= 1
			return os.WriteFile(p, b, 0o600)
		},
		"another's": func(p string, b []byte) error { return os.WriteFile(p, []byte("age-encryption.org/v1\n"), 0o600) },
	} {
		s, dir, _ := newStore(t)
		if err := s.Put(t.Context(), label, image(t)); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "alice@7")
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := spoil(path, b); err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(t.TempDir(), "out")
		if _, err := s.Take(t.Context(), "alice", 7, out); !errors.Is(err, ErrTorn) {
			t.Errorf("%s: %v", name, err)
		}
		absent(t, out)
		absent(t, path)
	}
	s, dir, _ := newStore(t)
	if err := s.Put(t.Context(), label, image(t)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "alice@7"), filepath.Join(dir, "bob@9")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Take(t.Context(), "bob", 9, filepath.Join(t.TempDir(), "out")); !errors.Is(err, ErrTorn) {
		t.Errorf("after a rename: %v", err)
	}
}

func TestStoreRemovesUnfinishedFiles(t *testing.T) {
	s, dir, key := newStore(t)
	if err := s.Put(t.Context(), label, image(t)); err != nil {
		t.Fatal(err)
	}
	other, err := OpenStore(StoreOptions{Dir: dir, Owner: "n1.b", MaxImage: most}, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{s.tempName("x" + partialSuffix), s.tempName("bob@3" + partialSuffix), other.tempName("x" + partialSuffix), "note"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := OpenStore(StoreOptions{Dir: dir, Owner: "n1", MaxImage: most}, "AGE-SECRET-KEY-nonsense"); err == nil || strings.Contains(err.Error(), "nonsense") || holdfast.HintOf(err) == "" {
		t.Errorf("a bad key: %v", err)
	}
	if s, err = OpenStore(StoreOptions{Dir: dir, Owner: "n1", MaxImage: most}, key); err != nil {
		t.Fatal(err)
	}
	all, err := s.List()
	if err != nil || len(all) != 1 || all[0].Key != "alice" || all[0].Epoch != 7 || all[0].Bytes == 0 {
		t.Errorf("%+v, %v", all, err)
	}
	absent(t, filepath.Join(dir, s.tempName("x"+partialSuffix)))
	absent(t, filepath.Join(dir, s.tempName("bob@3"+partialSuffix)))
	if _, err := os.Stat(filepath.Join(dir, other.tempName("x"+partialSuffix))); err != nil {
		t.Errorf("the unfinished file of another owner: %v", err)
	}
	for range 2 { // Drop succeeds if the image does not exist
		if err := s.Drop(t.Context(), label); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Take(t.Context(), "alice", 7, filepath.Join(t.TempDir(), "x")); !errors.Is(err, holdfast.ErrNotFound) {
		t.Error(err)
	}
}

// Another key opens no image.
func TestStoreWithAnotherKey(t *testing.T) {
	s, dir, _ := newStore(t)
	if err := s.Put(t.Context(), label, image(t)); err != nil {
		t.Fatal(err)
	}
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenStore(StoreOptions{Dir: dir, Owner: "n2", MaxImage: most}, key)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if _, err := other.Take(t.Context(), "alice", 7, out); !errors.Is(err, ErrTorn) {
		t.Errorf("with another key: %v", err)
	}
	absent(t, out)
}

// Send writes what Take would have unpacked, once.
func TestStoreSends(t *testing.T) {
	s, _, _ := newStore(t)
	if err := s.Put(t.Context(), label, image(t)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := s.Send(t.Context(), "alice", 7, &b); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if _, err := Unpack(&b, out, most, nil); err != nil {
		t.Fatal(err)
	}
	same(t, out)
	if err := s.Send(t.Context(), "alice", 7, &b); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("twice: %v", err)
	}
}

// A full disk leaves no part of an image.
func TestStoreOnAFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("this test mounts a file system, as root")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	s, err := OpenStore(StoreOptions{Dir: filepath.Join(dir, "store"), Owner: "n1", MaxImage: most}, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), label, image(t)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("200 KB on a disk of 128 KB: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "store")); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

// copies is a Remote that keeps the files in another directory.
type copies string

func (c copies) copy(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}

func (c copies) Put(_ context.Context, name, file string) error {
	return c.copy(file, filepath.Join(string(c), name))
}

func (c copies) Get(_ context.Context, name, file string) error {
	return c.copy(filepath.Join(string(c), name), file)
}

func (c copies) Drop(_ context.Context, name string) error {
	return os.Remove(filepath.Join(string(c), name))
}

func TestRemoteStore(t *testing.T) {
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	far := t.TempDir()
	open := func(owner holdfast.NodeID) (*ImageStore, string) {
		dir := t.TempDir()
		s, err := OpenStore(StoreOptions{Dir: dir, Owner: owner, MaxImage: most, Remote: copies(far)}, key)
		if err != nil {
			t.Fatal(err)
		}
		return s, dir
	}
	s, dir := open("n1")
	if err := s.Put(t.Context(), label, image(t)); err != nil {
		t.Fatal(err)
	}
	other, otherDir := open("n2")
	out := filepath.Join(t.TempDir(), "out")
	if _, err := other.Take(t.Context(), "alice", 7, out); err != nil {
		t.Fatal(err)
	}
	same(t, out)
	if _, err := s.Take(t.Context(), "alice", 7, out+"2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("twice: %v", err)
	}
	for _, d := range []string{far, dir, otherDir} {
		if left, err := os.ReadDir(d); err != nil || len(left) != 0 {
			t.Errorf("left over: %v, %v", left, err)
		}
	}
}

// The remaining images are not too old, are known, fit, and are the newest that fit.
func TestSurplus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1e6, 0)
		all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) StoredImage {
			return StoredImage{Key: "k", Epoch: holdfast.Epoch(rapid.Int64Range(1, 1e6).Draw(t, "epoch")), Bytes: rapid.Int64Range(0, 100).Draw(t, "bytes"),
				TakenAt: now.Add(-time.Duration(rapid.IntRange(0, 20).Draw(t, "hours")) * time.Hour)}
		}), 0, 12).Draw(t, "kept")
		b := Limits{Age: 10 * time.Hour, Space: rapid.Int64Range(0, 500).Draw(t, "space"), Grace: 2 * time.Hour}
		more := rapid.Int64Range(0, 200).Draw(t, "more")
		known := func(k StoredImage) bool { return k.Epoch%3 != 0 }
		out := Surplus(slices.Clone(all), b, more, now, known)
		goes := func(k StoredImage) string {
			for _, d := range out {
				if d.StoredImage == k {
					return d.Reason
				}
			}
			return ""
		}
		total, oldest := int64(0), now
		for _, k := range all {
			old, strange := now.Sub(k.TakenAt) >= b.Age, now.Sub(k.TakenAt) >= b.Grace && !known(k)
			switch why := goes(k); {
			case old && why != Expired, !old && why == Expired, !old && strange != (why == Unknown):
				t.Fatalf("%+v: %q", k, why)
			case why == "":
				total += k.Bytes
				if k.TakenAt.Before(oldest) {
					oldest = k.TakenAt
				}
			}
		}
		if total > 0 && total+more > b.Space {
			t.Fatalf("%d bytes remain, with %d more, of %d", total, more, b.Space)
		}
		for _, d := range out {
			if d.Reason == NoSpace && d.TakenAt.After(oldest) && total > 0 {
				t.Fatalf("%+v is removed, and an older image remains", d)
			}
		}
	})
}
