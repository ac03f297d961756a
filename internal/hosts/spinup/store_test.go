package spinup

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"holdfast"
)

// childStore is the environment variable with the path of the records. TestCrashLosesNothing starts
// this program with it, and the program appends records until it is killed.
const childStore = "HOLDFAST_TEST_STORE"

func TestMain(m *testing.M) {
	if path := os.Getenv(childStore); path != "" {
		fillForever(path)
	}
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, path string, keep Keep) *Store {
	t.Helper()
	s, err := OpenStore(path, keep, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// record returns a record of a spin-up that began at t.
func record(t time.Time, image string) Record {
	return Record{
		ID: newID(t), Kind: ForRun, Image: image, Begun: t.UTC().Round(0), Outcome: OK,
		Times: map[Phase]holdfast.Millis{Create: holdfast.Millis(3 * time.Second)},
		Pull:  &Pull{Image: image, Done: true, Took: holdfast.Millis(time.Second), Layers: []Layer{{ID: "a", State: Complete, Size: 5, Fetched: 5}}},
	}
}

func TestRecordsSurviveARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "spinup.db")
	s, err := OpenStore(path, DefaultKeep(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	var want []Record
	for i := range 5 {
		r := record(now.Add(time.Duration(i)*time.Second), fmt.Sprintf("image:%d", i))
		if i == 3 {
			r.Kind, r.Outcome, r.Job = ForSession, Failed, "alice"
		}
		want = append([]Record{r}, want...)
		if err := s.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, DefaultKeep())
	for name, c := range map[string]struct {
		filter Filter
		want   []Record
	}{
		"all":     {Filter{}, want},
		"newest":  {Filter{Limit: 2}, want[:2]},
		"since":   {Filter{Since: now.Add(1500 * time.Millisecond)}, want[:3]},
		"until":   {Filter{Until: now.Add(1500 * time.Millisecond)}, want[3:]},
		"between": {Filter{Since: now.Add(500 * time.Millisecond), Until: now.Add(3500 * time.Millisecond)}, want[1:4]},
		"future":  {Filter{Since: now.Add(time.Hour)}, nil},
		"kind":    {Filter{Kind: ForSession}, want[1:2]},
		"outcome": {Filter{Outcome: Failed}, want[1:2]},
		"job":     {Filter{Job: "alice"}, want[1:2]},
		"image":   {Filter{Image: "image:0"}, want[4:]},
		"nothing": {Filter{Image: "image:0", Kind: ForPull}, nil},
	} {
		got, err := s.List(c.filter)
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	if got, err := s.Get(want[2].ID); err != nil || got.Image != "image:2" {
		t.Errorf("%+v, %v", got, err)
	}
	for _, id := range []string{"", "nonsense", want[0].ID[:2]} { // the last is the begin of all
		if got, err := s.Get(id); !errors.Is(err, holdfast.ErrNotFound) {
			t.Errorf("%q: %+v, %v", id, got, err)
		}
	}
	if r, err := s.Report(Question{By: ByKind}, DefaultRules()); err != nil || len(r.Groups) != 2 || r.Groups[0].Count != 4 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestRecordsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spinup.db")
	s := open(t, path, Keep{Count: 10, Age: time.Hour})
	now := time.Now()
	for i := range 25 {
		if err := s.Append(record(now.Add(time.Duration(i-24)*time.Second), "x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Append(record(now.Add(-2*time.Hour), "old")); err != nil {
		t.Fatal(err)
	}
	got, err := s.List(Filter{})
	if err != nil || len(got) != 10 || !got[0].Begun.Equal(now.UTC().Round(0)) || got[9].Image != "x" {
		t.Fatalf("%d records, %v", len(got), err)
	}
	again := got[0]
	again.Image = "again"
	if err := s.Append(again); err != nil {
		t.Fatal(err)
	}
	if got, err := s.List(Filter{}); err != nil || len(got) != 10 || got[0].Image != "again" {
		t.Errorf("one that was there: %d records, the first %+v, %v", len(got), got[0], err)
	}
	huge := record(now, strings.Repeat("x", 1<<20))
	huge.Error = strings.Repeat("y", 1<<20)
	for range 10_000 {
		huge.Pull.Layers = append(huge.Pull.Layers, Layer{ID: strings.Repeat("z", 100)})
	}
	if err := s.Append(huge); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(huge.ID); err != nil || len(got.Image) > 2*maxWords || len(got.Error) > 2*maxWords || len(got.Pull.Layers) != maxRecordLayers {
		t.Errorf("%d bytes of name, %d layers, %v", len(got.Image), len(got.Pull.Layers), err)
	}
	if len(huge.Pull.Layers) < 10_000 {
		t.Error("the caller's record was cut")
	}
	if err := s.Append(Record{}); err == nil {
		t.Error("a record without an id was taken")
	}
}

func TestOneProcessHasTheRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spinup.db")
	open(t, path, DefaultKeep())
	other, err := OpenStore(path, DefaultKeep(), slog.New(slog.DiscardHandler))
	if !errors.Is(err, ErrInUse) || holdfast.HintOf(err) == "" {
		t.Errorf("%v, %v", other, err)
	}
	if _, err := OpenStore(path, Keep{}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("records that keep nothing were opened")
	}
}

// TestManyAtOnce: a hundred spin-ups end at the same time.
func TestManyAtOnce(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "spinup.db"), DefaultKeep())
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			timer := NewTimer(ForRun, fmt.Sprintf("image:%d", i), Cohort{Host: "h"})
			timer.Job(fmt.Sprint(i))
			timer.Pulled(Pull{Done: true, Image: fmt.Sprintf("image:%d", i), Layers: []Layer{{ID: fmt.Sprint(i), Size: int64(i)}}})
			timer.Took(Create, time.Duration(i)*time.Millisecond, nil)
			if err := s.Append(timer.End(nil)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	got, err := s.List(Filter{})
	if err != nil || len(got) != 100 {
		t.Fatalf("%d records, %v", len(got), err)
	}
	seen := map[string]bool{}
	for _, r := range got {
		seen[r.Job] = true
		if r.Image != "image:"+r.Job || r.Pull.Image != r.Image || r.Pull.Layers[0].ID != r.Job ||
			fmt.Sprint(time.Duration(r.Times[Create]).Milliseconds()) != r.Job {
			t.Errorf("mixed up: %+v", r)
		}
	}
	if len(seen) != 100 {
		t.Errorf("%d of 100 are there", len(seen))
	}
}

// fillForever appends records and prints the number of saved ones.
func fillForever(path string) {
	s, err := OpenStore(path, DefaultKeep(), slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for i := 0; ; i++ {
		r := record(time.Now(), "x")
		r.Job = fmt.Sprint(i)
		if err := s.Append(r); err != nil {
			os.Exit(1)
		}
		fmt.Println(i)
	}
}

// TestCrashLosesNothing kills a process that appends records. The records that it reported
// as saved are in the file.
func TestCrashLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "spinup.db")
	said := 0
	for round := range 3 {
		child := exec.Command("/proc/self/exe")
		child.Env = append(os.Environ(), childStore+"="+path)
		var out lockedBuffer
		child.Stdout = &out
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); out.lines() < 20; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("it says %q", out.String())
			}
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = child.Wait() // it was killed
		said += out.lines()
		s, err := OpenStore(path, DefaultKeep(), slog.New(slog.NewTextHandler(t.Output(), nil)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.List(Filter{})
		if err != nil || len(got) < said || len(got) > said+round+1 {
			t.Errorf("%d records of %d that were said to be kept, %v", len(got), said, err)
		}
		said = len(got)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if aside, _ := filepath.Glob(path + ".damaged*"); len(aside) > 0 {
		t.Errorf("a crash was taken for damage: %v", aside)
	}
}

// lockedBuffer may be written and read at the same time.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *lockedBuffer) lines() int { return strings.Count(b.String(), "\n") }

// TestDamageIsMovedAside damages the file in many ways. The store opens again, empty or
// complete, and the damaged file is kept and logged.
func TestDamageIsMovedAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "good.db")
	s, err := OpenStore(path, DefaultKeep(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if err := s.Append(record(time.Now(), fmt.Sprintf("image:%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damage := map[string][]byte{
		"text":        []byte("these are no records\n"),
		"half a page": good[:2048],
		"cut off":     good[:len(good)/2/4096*4096],
		"no records":  bytes.ReplaceAll(good, []byte(`{"id":"`), []byte(`{"di":"`)),
	}
	for page := range min(len(good)/4096, 40) {
		broken := bytes.Clone(good)
		for i := range 64 {
			broken[page*4096+i] ^= 0xa5
		}
		damage[fmt.Sprintf("page %d", page)] = broken
	}
	found := 0
	for name, data := range damage {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".db")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		s, err := OpenStore(path, DefaultKeep(), slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := s.List(Filter{})
		aside, _ := filepath.Glob(path + ".damaged-*")
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case len(aside) == 0 && len(got) != 200: // a page that is not in use
			t.Errorf("%s: %d records, and nothing was said", name, len(got))
		case len(aside) == 1 && (len(got) != 0 || !strings.Contains(log.String(), aside[0])):
			t.Errorf("%s: %d records, the log says %q", name, len(got), log.String())
		}
		found += len(aside)
		if err := errors.Join(s.Append(record(time.Now(), "new")), s.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if found < 10 {
		t.Errorf("only %d of %d were found damaged", found, len(damage))
	}
}
