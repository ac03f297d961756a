package etcd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/store"
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

// fill uses up dir's filesystem except for spare bytes, and returns a function that
// frees them.
func fill(t *testing.T, dir string, spare uint64) (free func()) {
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

// TestDiskFull fills the disk to the last byte under a server. Existing records stay,
// are renewed and can be released; new ones are refused. When there is room again,
// everything works.
func TestDiskFull(t *testing.T) {
	dir := smallDisk(t, "320m")
	s := open(t, filepath.Join(dir, "etcd")).Store()
	id, _, err := s.Grant(t.Context(), time.Minute)
	must(t, err)
	var owners []holdfast.Owner
	for _, key := range []holdfast.SessionKey{"a", "b", "c"} {
		o, err := s.Claim(t.Context(), holdfast.Owner{Key: key, State: holdfast.Claimed}, id)
		must(t, err)
		owners = append(owners, o)
	}
	free := fill(t, dir, 0)
	for range 3 { // spread over several of etcd's commits, which are 100 ms apart
		_, err = s.Claim(t.Context(), holdfast.Owner{Key: "d", State: holdfast.Claimed}, id)
		wantNoSpace(t, "Claim", err)
		_, _, err = s.Grant(t.Context(), time.Minute)
		wantNoSpace(t, "Grant", err)
		_, err = s.Advance(t.Context(), owners[0])
		wantNoSpace(t, "Advance", err)
		wantNoSpace(t, "PutNode", s.PutNode(t.Context(), holdfast.Node{ID: "n1"}, id))
		must(t, s.KeepAlive(t.Context(), id))
		keys, err := s.Release(t.Context(), owners[len(owners)-1])
		must(t, err)
		if len(keys) != 1 {
			t.Errorf("Release on a full disk = %v; want one", keys)
		}
		if owners = owners[:len(owners)-1]; len(owners) == 0 {
			break
		}
		time.Sleep(150 * time.Millisecond)
		got, _, err := s.List(t.Context())
		must(t, err)
		if len(got) != len(owners) {
			t.Errorf("on a full disk the records are %v; want %v", got, owners)
		}
	}
	t.Logf("error: %v", err)
	free()
	_, err = s.Claim(t.Context(), holdfast.Owner{Key: "d", State: holdfast.Claimed}, id)
	must(t, err)
}

// TestDiskFullAtStart: no room for a new directory, none for an old one.
func TestDiskFullAtStart(t *testing.T) {
	disk := smallDisk(t, "320m")
	dir := filepath.Join(disk, "etcd")
	must(t, os.Mkdir(dir, 0o700))
	free := fill(t, disk, 1<<20)
	_, err := Open(t.Context(), ServerConfig{DataDir: dir})
	wantNoSpace(t, "Open of a new directory", err)
	free()
	want, id := fillDir(t, dir)
	free = fill(t, disk, 1<<20)
	_, err = Open(t.Context(), ServerConfig{DataDir: dir})
	wantNoSpace(t, "Open", err)
	t.Logf("error: %v", err)
	t.Logf("hint: %s", holdfast.HintOf(err))
	free()
	s := open(t, dir).Store()
	must(t, s.KeepAlive(t.Context(), id))
	got, err := s.Get(t.Context(), want.Key)
	must(t, err)
	if got != want {
		t.Errorf("after room was made the record is %v; want %v", got, want)
	}
}

// overrun writes past the reserve until etcd fails.
func overrun(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	wal.SegmentSizeBytes = 1 << 20 // before any server runs; a small segment is full soon
	s, err := Open(ctx, ServerConfig{DataDir: dir})
	if err != nil {
		return err
	}
	var st store.Store = s.Store()
	s.store.room = nil
	id, _, err := st.Grant(ctx, time.Minute)
	if err != nil {
		return err
	}
	big := string(make([]byte, 100<<10))
	for i := 0; err == nil && ctx.Err() == nil; i++ {
		err = st.PutNode(ctx, holdfast.Node{ID: "n1", Version: big}, id)
	}
	<-s.Failed()
	return errors.Join(s.Close(), err)
}

// TestDiskOverrun: if the disk fills up despite the reserve, the server fails, but
// the process lives and reports it, and nothing is lost.
func TestDiskOverrun(t *testing.T) {
	disk := smallDisk(t, "400m")
	dir := filepath.Join(disk, "etcd")
	want, id := fillDir(t, dir)
	free := fill(t, disk, 150<<20)
	o, end := startChild(t, dir, childOverrun)
	must(t, end())
	if o.Error == "" || o.Hint == "" {
		t.Errorf("the child says %+v; want an error with a hint", o)
	}
	t.Logf("error: %s", o.Error)
	t.Logf("hint: %s", o.Hint)
	free()
	s := open(t, dir).Store()
	must(t, s.KeepAlive(t.Context(), id))
	got, err := s.Get(t.Context(), want.Key)
	must(t, err)
	if got != want {
		t.Errorf("after room was made the record is %v; want %v", got, want)
	}
}

// TestQuota: etcd's alarm for a full database refuses writes; opening it again
// makes room.
func TestQuota(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), ServerConfig{DataDir: dir})
	must(t, err)
	id, _, err := s.Store().Grant(t.Context(), time.Minute)
	must(t, err)
	_, err = s.etcd.Alarm(t.Context(), &pb.AlarmRequest{
		Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE, MemberID: uint64(s.etcd.MemberID()),
	})
	must(t, err)
	_, err = s.Store().Claim(t.Context(), holdfast.Owner{Key: "a", State: holdfast.Claimed}, id)
	wantNoSpace(t, "Claim", err)
	must(t, s.Store().KeepAlive(t.Context(), id))
	must(t, s.Close())
	_, err = open(t, dir).Store().Claim(t.Context(), holdfast.Owner{Key: "a", State: holdfast.Claimed}, id)
	must(t, err)
}
