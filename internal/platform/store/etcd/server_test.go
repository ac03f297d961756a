package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast"
	"holdfast/internal/platform/store"
)

func TestLeaseSurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	claimed, id := fillDir(t, dir)
	s := open(t, dir).Store()
	must(t, s.KeepAlive(t.Context(), id))
	got, err := s.Get(t.Context(), "alice")
	must(t, err)
	if got != claimed {
		t.Errorf("after a restart the record is %v; want %v", got, claimed)
	}
	// The record is still under the lease.
	must(t, s.Revoke(t.Context(), id))
	if got, err := s.Get(t.Context(), "alice"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("after Revoke: %v, %v; want ErrNotFound", got, err)
	}
}

func TestLeaseExpiresAfterRestart(t *testing.T) {
	dir := t.TempDir()
	first, err := Open(t.Context(), ServerConfig{DataDir: dir})
	must(t, err)
	id, _, err := first.Store().Grant(t.Context(), 1)
	must(t, err)
	_, err = first.Store().Claim(t.Context(), holdfast.Owner{Key: "alice", State: holdfast.Claimed}, id)
	must(t, err)
	must(t, first.Close())
	s := open(t, dir).Store()
	_, at, err := s.List(t.Context())
	must(t, err)
	if e := <-s.Watch(t.Context(), at); e.Key != "alice" || !e.Deleted {
		t.Errorf("the first event is %+v; want alice deleted", e)
	}
	if err := s.KeepAlive(t.Context(), id); !errors.Is(err, store.ErrLeaseGone) {
		t.Errorf("KeepAlive = %v; want ErrLeaseGone", err)
	}
}

func TestKeepsToItself(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	must(t, os.MkdirAll(dir, 0o755))
	open(t, dir)
	info, err := os.Stat(dir)
	must(t, err)
	if info.Mode().Perm() != 0o700 {
		t.Errorf("mode of the data directory is %v; want 0700", info.Mode())
	}
	for _, f := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile("/proc/self/net/" + f)
		must(t, err)
		for line := range strings.Lines(string(b)) {
			if fields := strings.Fields(line); len(fields) > 9 && fields[3] == "0A" && ownSocket(t, fields[9]) {
				t.Errorf("this process listens: %s", line)
			}
		}
	}
}

// ownSocket reports whether the inode is a socket of this process.
func ownSocket(t *testing.T, inode string) bool {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	must(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}

func TestDirInUse(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	for _, where := range []string{"lock", "member/snap/db"} {
		if where != "lock" { // an etcd without Holdfast's lock
			must(t, os.Remove(filepath.Join(dir, "lock")))
		}
		_, err := Open(t.Context(), ServerConfig{DataDir: dir})
		if !errors.Is(err, ErrInUse) || holdfast.HintOf(err) == "" {
			t.Errorf("Open of a directory with %s taken = %v (hint %q); want ErrInUse with a hint", where, err, holdfast.HintOf(err))
		}
	}
	o, _ := startChild(t, dir, childHold) // from another process
	if !strings.Contains(o.Error, ErrInUse.Error()) || o.Hint == "" {
		t.Errorf("another process gets %+v; want %v with a hint", o, ErrInUse)
	}
}

func TestDirUnusable(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := Open(t.Context(), ServerConfig{DataDir: file}); err == nil || !strings.Contains(err.Error(), file) || holdfast.HintOf(err) == "" {
		t.Errorf("Open of a file = %v; want an error that names it, with a hint", err)
	}
	if _, err := Open(t.Context(), ServerConfig{DataDir: filepath.Join(file, "sub")}); err == nil {
		t.Error("Open under a file works")
	}
}

func TestCrash(t *testing.T) {
	dir := t.TempDir()
	fillDir(t, dir)
	_, end := startChild(t, dir, childHold)
	must(t, end())
	if o, _ := startChild(t, dir, childHold); len(o.Keys) != 1 {
		t.Errorf("after a restart: %+v", o)
	}
}

func TestBrokenFiles(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"database overwritten": func(t *testing.T, dir string) {
			overwrite(t, dbPath(dir), 0, 64<<10)
		},
		"database overwritten behind its head": func(t *testing.T, dir string) {
			overwrite(t, dbPath(dir), 8<<10, 64<<10)
		},
		"database cut off": func(t *testing.T, dir string) {
			must(t, os.Truncate(dbPath(dir), 8<<10))
		},
		"database is a directory": func(t *testing.T, dir string) {
			must(t, os.Remove(dbPath(dir)))
			must(t, os.Mkdir(dbPath(dir), 0o700))
		},
		"log and database disagree": func(t *testing.T, dir string) {
			other := t.TempDir()
			fillDir(t, other)
			s, err := Open(t.Context(), ServerConfig{DataDir: dir})
			must(t, err)
			for range 10 {
				_, _, err := s.Store().Grant(t.Context(), 1)
				must(t, err)
			}
			must(t, s.Close())
			must(t, os.Rename(logPath(t, other), logPath(t, dir)))
		},
		"log overwritten": func(t *testing.T, dir string) {
			overwrite(t, logPath(t, dir), 100, 200)
		},
		"log cut off": func(t *testing.T, dir string) {
			must(t, os.Truncate(logPath(t, dir), 300))
		},
		"log gone": func(t *testing.T, dir string) {
			must(t, os.Remove(logPath(t, dir)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			fillDir(t, dir)
			damage(t, dir)
			o, end := startChild(t, dir, childHold)
			if o.Error == "" || o.Hint == "" {
				t.Errorf("Open says %+v; want an error with a hint", o)
			}
			must(t, end())
			t.Logf("error: %s", o.Error)
			t.Logf("hint: %s", o.Hint)
		})
	}
}

// TestDatabaseLost: as long as the log is complete, a lost database loses no record.
func TestDatabaseLost(t *testing.T) {
	for name, lose := range map[string]func(string) error{
		"empty":   func(path string) error { return os.Truncate(path, 0) },
		"removed": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			want, _ := fillDir(t, dir)
			must(t, lose(dbPath(dir)))
			got, err := open(t, dir).Store().Get(t.Context(), want.Key)
			must(t, err)
			if got != want {
				t.Errorf("the record is %v; want %v", got, want)
			}
		})
	}
}

func overwrite(t *testing.T, path string, at, n int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte(strings.Repeat("x", int(n))), at)
	must(t, err)
}

func logPath(t *testing.T, dir string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
	must(t, err)
	if len(paths) != 1 {
		t.Fatalf("log files: %v; want one", paths)
	}
	return paths[0]
}
