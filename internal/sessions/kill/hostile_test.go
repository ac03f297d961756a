package kill_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/sessions/kill"
	"holdfast/test/lab/labtest"
)

// A user creates groups below a delegated one: many, deep, beyond PATH_MAX, with the
// names of containers, and others that come, go and change their names meanwhile. A
// search finds the containers of root, also below the delegated group, and no decoy.
func TestSearchHostile(t *testing.T) {
	const user = 65534
	tree := newGroupTree(t)
	delegated := tree.add("delegated.slice")
	if err := os.Chown(delegated, user, user); err != nil {
		t.Fatal(err)
	}
	plain, inside, decoy := strings.Repeat("0a", 32), strings.Repeat("1b", 32), strings.Repeat("2c", 32)
	tree.add("docker")
	tree.add("docker/" + plain)
	tree.add("delegated.slice/" + inside)
	o, err := kill.NewOpener()
	if err != nil {
		t.Fatal(err)
	}
	search := func() time.Duration {
		t.Helper()
		begun := time.Now()
		found, err := o.Search([]string{plain, inside, decoy})
		took := time.Since(begun)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) != 2 || len(found[plain]) != 1 || len(found[inside]) != 1 {
			t.Fatalf("found %v", found)
		}
		return took
	}
	before := search()

	made := userDirs{t: t, user: user, top: delegated}
	many := 500
	if labtest.Long() {
		many = 50_000 // root's group is found among them
	}
	defer made.remove()
	made.make(fmt.Sprintf("docker-%s.scope/below", decoy))
	made.make(strings.Repeat("deep/", 64))
	made.make(strings.Repeat(strings.Repeat("n", 250)+"/", 20)) // 5,020 bytes
	for i := range many {
		made.make(fmt.Sprintf("wide-%d/below", i))
	}
	after := search()
	t.Logf("a search took %v before, %v with %d hostile groups", before, after, 2*many)
	defer made.churn()()
	for range 20 {
		search()
	}
}

// userDirs are directories that a user creates below top.
type userDirs struct {
	t    *testing.T
	user int
	top  string
	made []string
}

// make creates a directory and its parents, one path component at a time, as the user.
func (u *userDirs) make(path string) {
	u.t.Helper()
	u.made = append(u.made, path)
	u.step(path, func(at int, name string) error {
		err := as(u.user, func() error { return unix.Mkdirat(at, name, 0o755) })
		if err == unix.EEXIST {
			return nil
		}
		return err
	})
}

// step calls f with the descriptor of each directory on the way to path, and the next
// name.
func (u *userDirs) step(path string, f func(at int, name string) error) {
	u.t.Helper()
	at, err := unix.Open(u.top, unix.O_PATH|unix.O_CLOEXEC, 0)
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if err == nil {
			err = f(at, name)
		}
		if err != nil {
			u.t.Fatalf("%.40s: %v", path, err)
		}
		var next int
		next, err = unix.Openat(at, name, unix.O_PATH|unix.O_CLOEXEC, 0)
		unix.Close(at)
		at = next
	}
	unix.Close(at)
}

// remove removes the directories, children first.
func (u *userDirs) remove() {
	for _, path := range u.made {
		type dir struct {
			at   int
			name string
		}
		var way []dir
		u.step(path, func(at int, name string) error {
			own, err := unix.FcntlInt(uintptr(at), unix.F_DUPFD_CLOEXEC, 0)
			way = append(way, dir{own, name})
			return err
		})
		for i := len(way) - 1; i >= 0; i-- {
			err := unix.Unlinkat(way[i].at, way[i].name, unix.AT_REMOVEDIR)
			unix.Close(way[i].at)
			if err != nil {
				u.t.Errorf("%.40s: %v", path, err)
			}
		}
	}
}

// churn creates, renames and removes groups until stop is called. Version 2 has no
// rename.
func (u *userDirs) churn() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		a, b := filepath.Join(u.top, "churn-a"), filepath.Join(u.top, "churn-b")
		for {
			_ = os.MkdirAll(a+"/x/y", 0o755)
			_ = os.Rename(a, b)
			for _, dir := range []string{a + "/x/y", a + "/x", a, b + "/x/y", b + "/x", b} {
				_ = os.Remove(dir)
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// as calls f with the file system rights of a user.
func as(uid int, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, err := unix.SetfsuidRetUid(uid)
	if err != nil {
		return err
	}
	err = f()
	return cmp.Or(err, unix.Setfsuid(was))
}
