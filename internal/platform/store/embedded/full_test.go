package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
)

// smallDisk mounts a filesystem of the size until the test ends.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		t.Fatalf("mount a small filesystem (this test needs root): %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, 0)) })
	return dir
}

// fillDisk uses up dir's filesystem except for spare bytes, and returns a function that
// frees them.
func fillDisk(t *testing.T, dir string, spare uint64) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	var fs unix.Statfs_t
	must(t, unix.Statfs(dir, &fs))
	must(t, unix.Fallocate(int(f.Fd()), 0, 0, int64(fs.Bavail*uint64(fs.Bsize)-spare)))
	return func() { must(t, os.Remove(path)) }
}

func wantNoSpace(t *testing.T, doing string, err error) {
	t.Helper()
	if !errors.Is(err, ErrNoSpace) || !errors.Is(err, holdfast.ErrStore) || holdfast.HintOf(err) == "" {
		t.Errorf("%s on a full disk = %v (hint %q); want ErrNoSpace, ErrStore and a hint", doing, err, holdfast.HintOf(err))
	}
}

// TestDiskFull fills the disk to the last byte under a store. Existing records stay,
// are renewed and can be released; new ones are refused. When there is room again,
// everything works.
func TestDiskFull(t *testing.T) {
	dir := smallDisk(t, "64m")
	s := open(t, filepath.Join(dir, "store"))
	id, _, err := s.Grant(t.Context(), time.Minute)
	must(t, err)
	var owners []holdfast.Owner
	for _, key := range []holdfast.SessionKey{"a", "b", "c"} {
		owners = append(owners, claim(t, s, key, id))
	}
	free := fillDisk(t, dir, 0)
	for len(owners) > 0 {
		_, err = s.Claim(t.Context(), holdfast.Owner{Key: "d", State: holdfast.Claimed}, id)
		wantNoSpace(t, "Claim", err)
		_, _, err = s.Grant(t.Context(), time.Minute)
		wantNoSpace(t, "Grant", err)
		_, err = s.Advance(t.Context(), owners[0])
		wantNoSpace(t, "Advance", err)
		wantNoSpace(t, "PutNode", s.PutNode(t.Context(), holdfast.Node{ID: "n1"}, id))
		wantNoSpace(t, "PutNote", s.PutNote(t.Context(), "name", nil, 0))
		must(t, s.KeepAlive(t.Context(), id))
		last := owners[len(owners)-1]
		owners = owners[:len(owners)-1]
		keys, err := s.Release(t.Context(), last)
		must(t, err)
		if len(keys) != 1 {
			t.Errorf("Release on a full disk = %v; want one", keys)
		}
		got, _, err := s.List(t.Context())
		must(t, err)
		if len(got) != len(owners) {
			t.Errorf("on a full disk the records are %v; want %v", got, owners)
		}
	}
	t.Logf("error: %v", err)
	free()
	claim(t, s, "d", id)
}

// TestDiskFullAtStart: there is no room for a new file, and none for an old one.
func TestDiskFullAtStart(t *testing.T) {
	disk := smallDisk(t, "64m")
	path := filepath.Join(disk, "store")
	free := fillDisk(t, disk, 1<<20)
	_, err := Open(path, Config{})
	wantNoSpace(t, "Open of a new file", err)
	free()
	want, id := fill(t, path)
	free = fillDisk(t, disk, 1<<20)
	_, err = Open(path, Config{})
	wantNoSpace(t, "Open", err)
	t.Logf("error: %v", err)
	t.Logf("hint: %s", holdfast.HintOf(err))
	free()
	s := open(t, path)
	must(t, s.KeepAlive(t.Context(), id))
	if got, err := s.Get(t.Context(), want.Key); err != nil || got != want {
		t.Errorf("after room was made the record is %v, %v; want %v", got, err, want)
	}
}

// roomy is a file that does not look at the free space.
type roomy struct{ *file }

func (roomy) Room() error { return nil }

// TestDiskOverrun: if the disk fills up despite the reserve, calls that write fail, others
// go on, and the state is that of the disk.
func TestDiskOverrun(t *testing.T) {
	disk := smallDisk(t, "64m")
	f := &file{path: filepath.Join(disk, "store")}
	must(t, f.open())
	s, err := New(roomy{f}, Config{})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	id, _, err := s.Grant(t.Context(), time.Minute)
	must(t, err)
	want := claim(t, s, "alice", id)
	free := fillDisk(t, disk, 256<<10)
	big := string(make([]byte, 100<<10))
	for i := 0; err == nil && i < 100; i++ {
		var writing sync.WaitGroup
		writing.Go(func() { // in one commit, as far as possible
			if got, err := s.Get(t.Context(), "alice"); err != nil || got != want {
				t.Errorf("Get = %v, %v; want %v", got, err, want)
			}
		})
		err = s.PutNode(t.Context(), holdfast.Node{ID: "n1", Version: big}, id)
		if err == nil {
			err = s.PutNote(t.Context(), "big"+string(rune('a'+i%26)), []byte(big[:60<<10]), 0)
		}
		writing.Wait()
	}
	wantNoSpace(t, "a write over the reserve", err)
	if err := s.Err(); err != nil {
		t.Fatalf("the store has failed: %v", err)
	}
	before, err := s.ListNotes(t.Context(), "big")
	must(t, err)
	must(t, s.KeepAlive(t.Context(), id))
	free()
	next := claim(t, s, "bob", id)
	if next.Epoch <= want.Epoch {
		t.Errorf("epoch %d after %d", next.Epoch, want.Epoch)
	}
	must(t, s.Replace(t.Context(), func() {})) // reads the disk
	after, err := s.ListNotes(t.Context(), "big")
	must(t, err)
	if len(after) != len(before) {
		t.Errorf("%d notes are on disk, %d in memory", len(after), len(before))
	}
}

// failing is a disk whose commits fail.
type failing struct {
	*file
	err error
}

func (f *failing) Commit(c []Change) error {
	if f.err != nil {
		return f.err
	}
	return f.file.Commit(c)
}

// TestDiskFails: after an error of the disk nothing is certain, so every call fails.
func TestDiskFails(t *testing.T) {
	f := &failing{file: &file{path: filepath.Join(t.TempDir(), "store")}}
	must(t, f.open())
	s, err := New(f, Config{})
	must(t, err)
	id, _, err := s.Grant(t.Context(), time.Minute)
	must(t, err)
	f.err = f.explain(unix.EIO)
	for range 2 {
		_, err = s.Claim(t.Context(), holdfast.Owner{Key: "a", State: holdfast.Claimed}, id)
		if !errors.Is(err, holdfast.ErrStore) || holdfast.HintOf(err) == "" {
			t.Errorf("Claim = %v (hint %q); want ErrStore with a hint", err, holdfast.HintOf(err))
		}
		f.err = nil
	}
	<-s.Failed()
	if err := s.Close(); !errors.Is(err, unix.EIO) {
		t.Errorf("Close = %v; want EIO", err)
	}
}
