package underway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/platform/linux/boottime"
)

// leased is a directory of leases, with the view of a collector that began before.
func leased(t *testing.T, c *clock) (*Leases, *List) {
	t.Helper()
	tool, err := OpenLeases(filepath.Join(t.TempDir(), "run", DirName), c.now)
	if err != nil {
		t.Fatal(err)
	}
	collector := *tool
	list := New(c.now)
	list.Include(&collector)
	if _, err := tool.Begin(Outside, "x", time.Minute); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
	if err := tool.End(strings.Repeat("0", 16)); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("without a directory: %v", err)
	}
	if n, _ := list.UnderWay(); n != 0 {
		t.Errorf("without a directory %d are under way", n)
	}
	if err := tool.Make(); err != nil {
		t.Fatal(err)
	}
	return tool, list
}

// running runs a list until stop is called.
func running(t *testing.T, l *List) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- l.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}
}

func announce(t *testing.T, l *Leases, name string, life time.Duration) Entry {
	t.Helper()
	e, err := l.Begin(Outside, name, life)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// names returns the leases that a list counts.
func names(l *List) string {
	var all []string
	for _, e := range l.Active() {
		all = append(all, e.Name)
	}
	return strings.Join(all, " ")
}

// TestLeasesCountEverywhere: all processes see the leases that any process announces or
// ends.
func TestLeasesCountEverywhere(t *testing.T) {
	var c clock
	tool, list := leased(t, &c)
	second := New(c.now)
	second.Include(tool)
	_, quiet := list.UnderWay()

	a := announce(t, tool, "a", time.Minute)
	n, busy := list.UnderWay()
	if n != 1 || busy.Before(quiet) || list.Counts()[Outside] != 1 || list.Active()[0] != a {
		t.Errorf("%d since %v: %+v, announced %+v", n, busy, list.Active(), a)
	}
	b := begin(t, list, "b", time.Minute) // by an agent
	if got := names(second); got != "a b" {
		t.Errorf("another collector sees %q", got)
	}
	if err := second.End(a.ID); err != nil {
		t.Error(err)
	}
	if n, since := list.UnderWay(); n != 1 || since != busy {
		t.Errorf("%d since %v", n, since)
	}
	if err := tool.End(b.ID); err != nil {
		t.Error(err)
	}
	if n, since := list.UnderWay(); n != 0 || since.Before(busy) {
		t.Errorf("%d since %v", n, since)
	}
	for _, end := range []func(string) error{list.End, second.End, tool.End} {
		if err := end(a.ID); !errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("ended again: %v", err)
		}
	}
	if left, err := os.ReadDir(tool.dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestALeaseEndsAtItsTime, even if the processes that announced it or saw it have died
// first.
func TestALeaseEndsAtItsTime(t *testing.T) {
	var c clock
	tool, list := leased(t, &c)
	short := announce(t, tool, "short", time.Minute)
	announce(t, tool, "long", MaxLife)
	c.forward(time.Minute - 1)
	if got := names(list); got != "short long" {
		t.Errorf("before: %q", got)
	}
	c.forward(1)
	if got := names(list); got != "long" {
		t.Errorf("after: %q", got)
	}
	if err := tool.End(short.ID); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("it ended by itself: %v", err)
	}
	late := New(c.now)
	late.Include(tool)
	if got := names(late); got != "long" {
		t.Errorf("a collector that begins now sees %q", got)
	}
	c.forward(MaxLife)
	if n, _ := list.UnderWay(); n != 0 {
		t.Errorf("%d are under way", n)
	}
}

// TestAWaiterIsToldOfLeases: Run signals a lease of another process at its next poll.
func TestAWaiterIsToldOfLeases(t *testing.T) {
	tool, list := leased(t, &clock{})
	tool.clock, list.leases.clock, list.clock = boottime.Now, boottime.Now, boottime.Now
	defer running(t, list)()
	wait := func(what string, changed <-chan struct{}) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(time.Minute):
			t.Fatalf("the change was not signalled: %s", what)
		}
	}
	changed := list.Changed()
	e := announce(t, tool, "a", time.Minute)
	wait("the begin", changed)
	changed = list.Changed()
	if err := tool.End(e.ID); err != nil {
		t.Fatal(err)
	}
	wait("the end", changed)
}

// TestWhatIsNoLeaseSuspendsNobody: leases of an earlier boot, torn, too long, too big or
// with a wrong name do not count, and neither do irregular files. The next announcement
// removes such leases.
func TestWhatIsNoLeaseSuspendsNobody(t *testing.T) {
	var c clock
	c.forward(time.Hour)
	tool, list := leased(t, &c)
	id := func(n int) string { return fmt.Sprintf("%016x", n) }
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(tool.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := func(n int, change func(*lease)) string {
		t.Helper()
		one := lease{Boot: tool.boot, Until: c.now().Add(time.Minute), Spinup: Entry{ID: id(n), Kind: Outside, Name: "x"}}
		change(&one)
		b, err := json.Marshal(one)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	good := text(1, func(*lease) {})
	write(id(1), good)
	if n, _ := list.UnderWay(); n != 1 {
		t.Fatalf("a good one counts %d times", n)
	}
	if err := os.Remove(filepath.Join(tool.dir, id(1))); err != nil {
		t.Fatal(err)
	}
	for n, bad := range []string{
		text(100, func(l *lease) { l.Boot = "6fbdc0a6-0000-4000-8000-000000000000" }), // an earlier boot
		text(101, func(l *lease) { l.Until = c.now().Add(MaxLife + 1) }),
		text(102, func(l *lease) { l.Until = c.now() }),
		text(103, func(l *lease) { l.Until = -1 }),
		text(104, func(l *lease) { l.Spinup.ID = id(1) }),
		text(105, func(l *lease) { l.Spinup.Kind = "" }),
		text(106, func(l *lease) { l.Spinup.Name = strings.Repeat("x", MaxName+1) }),
		text(107, func(*lease) {})[:40], // torn
		"", "null", "[]", "{}", "\x00\x01",
		text(113, func(*lease) {}) + strings.Repeat(" ", maxLease),
	} {
		write(id(100+n), bad)
	}
	const files = 14
	for _, err := range []error{
		os.Mkdir(filepath.Join(tool.dir, id(200)), 0o700),
		unix.Mkfifo(filepath.Join(tool.dir, id(201)), 0o600),
		os.Symlink("/dev/zero", filepath.Join(tool.dir, id(202))),
		os.Symlink(id(100), filepath.Join(tool.dir, id(203))),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	write(id(204)+".new", good) // its writer was killed
	write(id(205)+".new", good) // its writer is just before the end
	write("README", "not a lease")
	long := time.Now().Add(-2 * tornAfter)
	if err := os.Chtimes(filepath.Join(tool.dir, id(204)+".new"), long, long); err != nil {
		t.Fatal(err)
	}
	if n, _ := list.UnderWay(); n != 0 {
		t.Errorf("%d are under way: %+v", n, list.Active())
	}
	if left, err := os.ReadDir(tool.dir); err != nil || len(left) != files+7 {
		t.Errorf("looking has changed something: %d files, %v", len(left), err)
	}
	e := announce(t, tool, "next", time.Minute)
	if got := names(list); got != "next" {
		t.Errorf("%q are under way", got)
	}
	left, err := os.ReadDir(tool.dir)
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for _, f := range left {
		kept = append(kept, f.Name())
	}
	want := map[string]bool{e.ID: true, id(205) + ".new": true, "README": true}
	for _, name := range kept {
		if !want[name] {
			t.Errorf("%s is still there", name)
		}
	}
	if len(kept) != len(want) {
		t.Errorf("left: %v", kept)
	}
}

// TestLeasesAreBounded: the number of leases is limited. Expired leases free space.
func TestLeasesAreBounded(t *testing.T) {
	var c clock
	tool, list := leased(t, &c)
	for range MaxLeases {
		announce(t, tool, "x", time.Minute)
	}
	if _, err := tool.Begin(Outside, "one more", time.Minute); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	// An agent accepts the announcement nevertheless.
	begin(t, list, "one more", time.Minute)
	if n, _ := list.UnderWay(); n != MaxLeases+1 {
		t.Errorf("%d are under way", n)
	}
	c.forward(time.Minute)
	announce(t, tool, "x", time.Minute)
	if left, err := os.ReadDir(tool.dir); err != nil || len(left) != 1 {
		t.Errorf("%d files, %v", len(left), err)
	}
	for _, x := range []struct {
		kind, name string
		life       time.Duration
	}{{Outside, "x", 0}, {Outside, "x", MaxLife + 1}, {"", "x", time.Minute}, {Outside, strings.Repeat("x", MaxName+1), time.Minute}} {
		if _, err := tool.Begin(x.kind, x.name, x.life); err == nil {
			t.Errorf("%+v was announced", x)
		}
	}
}

// TestLeasesOfOthersAreNotBelieved: leases in a directory that other users may write to do
// not count. Otherwise any user could suspend deletions for ever.
func TestLeasesOfOthersAreNotBelieved(t *testing.T) {
	var c clock
	tool, list := leased(t, &c)
	announce(t, tool, "a", time.Minute)
	if err := os.Chmod(tool.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	fresh := New(c.now)
	fresh.Include(tool)
	if n, _ := fresh.UnderWay(); n != 0 {
		t.Errorf("%d count", n)
	}
	if _, err := tool.Begin(Outside, "b", time.Minute); err == nil || holdfast.HintOf(err) == "" {
		t.Errorf("announced: %v", err)
	}
	if err := tool.Make(); err == nil {
		t.Error("it is taken for a good one")
	}
	begin(t, list, "b", time.Minute) // for this process
	if n, _ := list.UnderWay(); n != 1 {
		t.Errorf("%d count", n)
	}
	link := tool.dir + "-link"
	if err := errors.Join(os.Chmod(tool.dir, 0o700), os.Symlink(tool.dir, link)); err != nil {
		t.Fatal(err)
	}
	tool.dir = link
	if _, err := tool.Begin(Outside, "b", time.Minute); err == nil {
		t.Error("a link to a directory was followed")
	}
}

// TestAToolThatIsKilled: a tool that is killed while it announces leaves a complete lease
// or none.
func TestAToolThatIsKilled(t *testing.T) {
	if args := os.Getenv("LEASES_TEST_DIR"); args != "" {
		l, err := OpenLeases(args, boottime.Now)
		if err != nil {
			t.Fatal(err)
		}
		for {
			e := announce(t, l, "child", 2*time.Second)
			if err := l.End(e.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	dir := filepath.Join(t.TempDir(), DirName)
	l, err := OpenLeases(dir, boottime.Now)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Make(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		child := exec.Command("/proc/self/exe", "-test.run", "^TestAToolThatIsKilled$")
		child.Env = append(os.Environ(), "LEASES_TEST_DIR="+dir)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); ; { // it works
			if files, err := os.ReadDir(dir); err != nil || len(files) > 0 || time.Now().After(end) {
				break
			}
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = child.Wait() // it was killed
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			one, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if leaseID().MatchString(f.Name()) && !json.Valid(one) {
				t.Errorf("%s is torn: %q", f.Name(), one)
			}
		}
	}
	list := New(boottime.Now)
	list.Include(l)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if n, _ := list.UnderWay(); n == 0 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("what the dead announced counts for ever: %+v", list.Active())
		}
	}
}
