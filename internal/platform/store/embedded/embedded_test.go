package embedded

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast"
	"holdfast/internal/platform/store"
	"holdfast/internal/platform/store/storetest"
)

// childFile is the store that this program opens in a process of its own.
const childFile = "HOLDFAST_TEST_STORE_FILE"

func TestMain(m *testing.M) {
	if path := os.Getenv(childFile); path != "" {
		os.Exit(child(path))
	}
	goleak.VerifyTestMain(m)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens a store until the test ends.
func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path, Config{Timeout: time.Minute}) // the disk of a test may be busy
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// fresh opens a store in a new file until the test ends.
func fresh(t *testing.T) *Store { return open(t, filepath.Join(t.TempDir(), "store")) }

// fill makes a file with one session's record, and returns it with its lease.
func fill(t *testing.T, path string) (holdfast.Owner, store.LeaseID) {
	t.Helper()
	s, err := Open(path, Config{Timeout: time.Minute})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	id, _, err := s.Grant(t.Context(), time.Minute)
	must(t, err)
	return claim(t, s, "alice", id), id
}

func claim(t *testing.T, s *Store, key holdfast.SessionKey, id store.LeaseID) holdfast.Owner {
	t.Helper()
	o, err := s.Claim(t.Context(), holdfast.Owner{Key: key, Node: "n1", State: holdfast.Claimed}, id)
	must(t, err)
	return o
}

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Subject{
		Open: func(t *testing.T) store.Store { return fresh(t) },
		Forget: func(t *testing.T, s store.Store) {
			_, err := await(t.Context(), s.(*Store), func(st *state) (struct{}, error) {
				for _, e := range st.history {
					st.unset(historyBucket, e.id)
				}
				st.history, st.Gone = nil, st.Revision
				return struct{}{}, nil
			})
			must(t, err)
		},
	})
}

func TestRestored(t *testing.T) {
	storetest.RunRestored(t, storetest.Subject{
		Open: func(t *testing.T) store.Store { return fresh(t) },
		Backup: func(t *testing.T, s store.Store) func() {
			f := s.(*Store).disk.(*file)
			copied := filepath.Join(t.TempDir(), "copy")
			must(t, s.(*Store).Replace(t.Context(), func() { copyFile(t, f.path, copied) }))
			return func() {
				must(t, s.(*Store).Replace(t.Context(), func() {
					if err := errors.Join(f.Close(), os.Remove(f.path)); err != nil {
						t.Error(err)
					}
					copyFile(t, copied, f.path)
					if err := f.open(); err != nil {
						t.Error(err)
					}
				}))
			}
		},
	})
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestNextProcess: a store that is opened again has the records, their leases, and the
// history that Watch and Follows read.
func TestNextProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	claimed, id := fill(t, path)
	s, err := Open(path, Config{})
	must(t, err)
	ready := claimed
	ready.State = holdfast.Ready
	ready, err = s.Advance(t.Context(), ready)
	must(t, err)
	must(t, s.PutNote(t.Context(), "a-note", []byte("text"), id))
	must(t, s.PutNode(t.Context(), holdfast.Node{ID: "n1", Sessions: 1}, id))
	seen := s.Seen()
	must(t, s.Close())

	s = open(t, path)
	s.Remember(seen)
	must(t, s.KeepAlive(t.Context(), id))
	got, err := s.Get(t.Context(), "alice")
	must(t, err)
	if got != ready {
		t.Errorf("the record is %v; want %v", got, ready)
	}
	if n, err := s.Node(t.Context(), "n1"); err != nil || n.Sessions != 1 {
		t.Errorf("the node is %v, %v", n, err)
	}
	if n, err := store.FindNote(t.Context(), s, "a-note"); err != nil || string(n.Value) != "text" {
		t.Errorf("the note is %v, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := s.Watch(ctx, claimed.Revision)
	if e := <-events; e.Owner != ready {
		t.Errorf("the first event is %+v; want %v", e, ready)
	}
	cancel()
	for range events {
	}
	if s.Seen().Restored {
		t.Error("the store takes its own file for a backup")
	}
	// The records are still under the lease.
	must(t, s.Revoke(t.Context(), id))
	if got, err := s.Get(t.Context(), "alice"); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("after Revoke: %v, %v; want ErrNotFound", got, err)
	}
	second, _, err := s.Grant(t.Context(), time.Minute)
	must(t, err)
	if second == id {
		t.Errorf("lease %d is granted twice", id)
	}
	next := claim(t, s, "alice", second)
	if follows, err := s.Follows(t.Context(), "alice", claimed.Epoch, next.Epoch); !follows || err != nil {
		t.Errorf("epoch %d follows %d: %v, %v", next.Epoch, claimed.Epoch, follows, err)
	}
}

// TestBackup: a process that finds an older file than its predecessor's notices it.
func TestBackup(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	_, id := fill(t, path)
	copyFile(t, path, path+".old")
	s, err := Open(path, Config{})
	must(t, err)
	later := claim(t, s, "bob", id)
	seen := s.Seen()
	must(t, s.Close())
	must(t, os.Rename(path+".old", path))
	s = open(t, path)
	s.Remember(seen)
	if _, err := s.Claim(t.Context(), holdfast.Owner{Key: "bob", State: holdfast.Claimed}, id); !errors.Is(err, store.ErrRestored) {
		t.Errorf("Claim = %v; want ErrRestored", err)
	}
	must(t, s.Resume(t.Context()))
	if o := claim(t, s, "bob", id); o.Epoch <= later.Epoch {
		t.Errorf("epoch %d after %d", o.Epoch, later.Epoch)
	}
}

func TestLeaseExpiresInNextProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	first, err := Open(path, Config{})
	must(t, err)
	id, _, err := first.Grant(t.Context(), 1)
	must(t, err)
	claim(t, first, "alice", id)
	must(t, first.Close())
	s := open(t, path)
	_, at, err := s.List(t.Context())
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := s.Watch(ctx, at)
	if e := <-events; e.Key != "alice" || !e.Deleted {
		t.Errorf("the first event is %+v; want alice deleted", e)
	}
	cancel()
	for range events {
	}
	if err := s.KeepAlive(t.Context(), id); !errors.Is(err, store.ErrLeaseGone) {
		t.Errorf("KeepAlive = %v; want ErrLeaseGone", err)
	}
}

func TestInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := open(t, path)
	if _, err := Open(path, Config{}); !errors.Is(err, ErrInUse) || holdfast.HintOf(err) == "" {
		t.Errorf("Open = %v (hint %q); want ErrInUse with a hint", err, holdfast.HintOf(err))
	}
	if o, _ := startChild(t, path); !strings.Contains(o.Error, ErrInUse.Error()) || o.Hint == "" {
		t.Errorf("another process gets %+v; want %v with a hint", o, ErrInUse)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, %v; want 0600", info.Mode(), err)
	}
	must(t, s.Close())
	if _, _, err := s.List(t.Context()); !errors.Is(err, holdfast.ErrStore) {
		t.Errorf("List after Close = %v; want ErrStore", err)
	}
}

func TestUnusable(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir, Config{}); err == nil || !strings.Contains(err.Error(), dir) || holdfast.HintOf(err) == "" {
		t.Errorf("Open of a directory = %v; want an error that names it, with a hint", err)
	}
	if _, err := Open(filepath.Join(dir, "none", "store"), Config{}); err == nil {
		t.Error("Open in a directory that does not exist works")
	}
}

// TestCrash kills a process that releases and claims a session without a pause, several
// times. What it has reported is on disk, or one or both of the writes that follow.
func TestCrash(t *testing.T) {
	const changes = 20
	path := filepath.Join(t.TempDir(), "store")
	fill(t, path)
	for range 5 {
		o, c := startChild(t, path)
		if o.Error != "" {
			t.Fatal(o.Error)
		}
		var last opened
		began := time.Now()
		for range changes {
			must(t, c.out.Decode(&last))
		}
		time.Sleep(rand.N(time.Since(began) / changes)) // so that it dies at any point of a change
		must(t, c.cmd.Process.Kill())
		for c.out.Decode(&last) == nil { // what it had reported until then
		}
		_ = c.cmd.Wait() // it was killed
		s, err := Open(path, Config{})
		must(t, err)
		switch o2, err := s.Get(t.Context(), "counter"); {
		case errors.Is(err, holdfast.ErrNotFound): // released, and not claimed again
		case err != nil:
			t.Fatal(err)
		case o2.Revision != last.Revision && o2.Revision != last.Revision+2: // the release has the one between
			t.Errorf("revision %d is on disk; %d was reported", o2.Revision, last.Revision)
		}
		must(t, s.Close())
	}
}

func TestBrokenFiles(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"overwritten":                 func(t *testing.T, path string) { overwrite(t, path, 0, 64<<10) },
		"overwritten behind its head": func(t *testing.T, path string) { overwrite(t, path, 8<<10, 24<<10) },
		"cut off":                     func(t *testing.T, path string) { must(t, os.Truncate(path, 12<<10)) },
		"not ours":                    func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("text"), 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store")
			fill(t, path)
			damage(t, path)
			o, _ := startChild(t, path)
			if o.Error == "" || o.Hint == "" {
				t.Errorf("Open says %+v; want an error with a hint", o)
			}
			t.Logf("error: %s", o.Error)
			t.Logf("hint: %s", o.Hint)
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

// opened is a line of a child's output.
type opened struct {
	Error    string
	Hint     string
	Revision holdfast.Revision // of the session "counter"
}

// child opens the store, and reports the result. Until EOF on standard input, it releases
// and claims one session, and reports each claim.
func child(path string) int {
	say := json.NewEncoder(os.Stdout)
	s, err := Open(path, Config{Timeout: time.Minute}) // as in open
	if err != nil {
		_ = say.Encode(opened{Error: err.Error(), Hint: holdfast.HintOf(err)})
		return 0
	}
	_ = say.Encode(opened{})
	end := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(end) }()
	ctx := context.Background()
	id, _, err := s.Grant(ctx, time.Hour)
	for err == nil {
		if o, getErr := s.Get(ctx, "counter"); getErr == nil {
			_, err = s.Release(ctx, o)
		}
		var o holdfast.Owner
		if err == nil {
			o, err = s.Claim(ctx, holdfast.Owner{Key: "counter", State: holdfast.Claimed}, id)
		}
		if err == nil {
			err = say.Encode(opened{Revision: o.Revision})
		}
		select {
		case <-end:
			return 0
		default:
		}
	}
	return 1
}

type process struct {
	cmd *exec.Cmd
	out *json.Decoder
}

// startChild returns the first line of a child, which ends with the test.
func startChild(t *testing.T, path string) (opened, process) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childFile+"="+path)
	cmd.Stderr = os.Stderr
	_, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	c := process{cmd, json.NewDecoder(bufio.NewReader(out))}
	var o opened
	must(t, c.out.Decode(&o))
	return o, c
}
