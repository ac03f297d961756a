package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/test/memstore"
	"holdfast/test/poll"
)

// snapping is a fake node with a snapshot command. Its script receives the key, the
// epoch and a file of the test as $1, $2 and $3.
type snapping struct {
	*node
	fake *fakeEngine
	file string
	set  setup
}

func newSnapping(t *testing.T, script string, change func(*setup)) *snapping {
	t.Helper()
	file := filepath.Join(t.TempDir(), "notes")
	tmpl := anywhere(t)
	tmpl.Snapshot = Snapshot{Command: []string{"/bin/sh", "-c", script, "sh", "{key}", "{epoch}", file}, Timeout: time.Minute}
	set := setup{id: "n1", store: memstore.New(1000), cfg: Config{Templates: []Template{tmpl}, Boots: 20}}
	if change != nil {
		change(&set)
	}
	n, fake := fakeNode(t, set)
	set.engine = fake
	return &snapping{n, fake, file, set}
}

// notes returns the lines that the commands wrote.
func (s *snapping) notes(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(s.file)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(text) == 0 { // a shell makes the file before it writes
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// note is a script that records the key, and then waits until the file of block is
// removed.
const note = `echo $1 >> $3; while [ -e $3.wait ]; do sleep 0.01; done`

// block makes the scripts of note wait until the returned file is removed.
func (s *snapping) block(t *testing.T) (unblock func()) {
	t.Helper()
	if err := os.WriteFile(s.file+".wait", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(s.file + ".wait"); err != nil {
			t.Error(err)
		}
	}
}

func TestSnapshotIsTakenBetweenDeadAndGivenUp(t *testing.T) {
	for name, end := range map[string]func(*snapping){
		"stop": func(s *snapping) { go func() { _, _ = s.Stop(context.Background(), "alice") }() },
		"idle": func(*snapping) {},
		"died": func(s *snapping) {
			c := s.fake.running()["alice"][0]
			s.fake.mu.Lock()
			_ = s.fake.containers[c.ID].cmd.Process.Kill()
			s.fake.mu.Unlock()
		},
		"drain": func(s *snapping) {
			b := s.MarkTerminating()
			b.Killed(s.deps.Killer.Kill(context.Background(), b.Targets()))
			go b.Snapshot(context.Background())
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSnapping(t, note, func(set *setup) {
				if name == "idle" {
					set.cfg.IdleStop = 50 * time.Millisecond
				}
			})
			unblock := s.block(t)
			r := s.serve(t, "alice")
			end(s)
			poll.Until(t, "the snapshot is being taken", func() bool { return slices.Equal(s.notes(t), []string{"alice"}) })
			if running := s.fake.running(); len(running) > 0 {
				t.Errorf("%v runs during the snapshot", running)
			}
			if o := s.records(t); len(o) != 1 || o[0].Epoch != r.Epoch {
				t.Errorf("records during the snapshot: %v", o)
			}
			unblock()
			s.empty(t)
			if got := s.notes(t); len(got) != 1 {
				t.Errorf("snapshots of %q", got)
			}
			again := s.serve(t, "alice")
			if again.Epoch <= r.Epoch {
				t.Errorf("epoch %d after %d", again.Epoch, r.Epoch)
			}
		})
	}
}

func TestSnapshotIsToldWhatAndUntilWhen(t *testing.T) {
	s := newSnapping(t, `echo "$1|$2|$HOLDFAST_SESSION|$HOLDFAST_EPOCH|$HOLDFAST_CONTAINER|$HOLDFAST_TEMPLATE|$HOLDFAST_NODE|$HOLDFAST_DEADLINE|$HOLDFAST_DEADLINE_SECONDS" > $3`, nil)
	r := s.serve(t, "alice")
	before := time.Now()
	report, err := s.Stop(t.Context(), "alice")
	if err != nil || report.Notice != "" || !slices.ContainsFunc(report.Steps, func(x holdfast.Step) bool { return x.Name == "snapshot" && x.Took > 0 }) {
		t.Errorf("%+v, %v", report, err)
	}
	got := strings.Split(s.notes(t)[0], "|")
	want := []string{"alice", itoa(r.Epoch), "alice", itoa(r.Epoch), r.ContainerID, "web", "n1"}
	if len(got) != 9 || !slices.Equal(got[:7], want) {
		t.Fatalf("got %q, want %q and the deadline", got, want)
	}
	until, err := time.Parse(time.RFC3339, got[7])
	if err != nil || until.Before(before.Add(50*time.Second)) || until.After(time.Now().Add(time.Minute)) {
		t.Errorf("deadline %v, %v", until, err)
	}
	if left, err := strconv.Atoi(got[8]); err != nil || left < 50 || left > 59 {
		t.Errorf("%s whole seconds left of 60", got[8])
	}
}

func TestSnapshotThatFailsGivesTheSessionUpAllTheSame(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"exit code": {"echo disk full; exit 3", "exit status 3"},
		"hangs":     {"trap '' TERM; sleep 600", "not done in time"},
		"children":  {"sleep 600 & sleep 600", "not done in time"},
		"output":    {"while :; do echo more; done", "not done in time"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSnapping(t, c.script, func(set *setup) {
				if strings.Contains(c.want, "time") { // otherwise the command has enough time
					set.cfg.Templates[0].Snapshot.Timeout = 300 * time.Millisecond
				}
			})
			s.serve(t, "alice")
			report, err := s.Stop(t.Context(), "alice")
			if err != nil || !strings.Contains(report.Notice, c.want) {
				t.Errorf("%+v, %v", report, err)
			}
			s.empty(t)
		})
	}
}

func TestNoSnapshotOfALostLease(t *testing.T) {
	s := newSnapping(t, note, nil)
	s.serve(t, "alice")
	s.LeaseLost(t.Context())
	s.empty(t)
	if got := s.notes(t); len(got) > 0 {
		t.Errorf("snapshots of %q", got)
	}

	// A running snapshot is ended, because another node may own the session.
	s.block(t)
	s.serve(t, "bob")
	stopped := make(chan holdfast.KillReport, 1)
	go func() { r, _ := s.Stop(context.Background(), "bob"); stopped <- r }()
	poll.Until(t, "the snapshot is being taken", func() bool { return len(s.notes(t)) == 1 })
	s.LeaseLost(t.Context())
	if r := <-stopped; !strings.Contains(r.Notice, ErrLeaseLost.Error()) {
		t.Errorf("%+v", r)
	}
	s.empty(t)
}

// drained marks and kills all sessions, and takes the snapshots.
func (s *snapping) drained(t *testing.T, ctx context.Context) (*Batch, holdfast.SnapshotReport) {
	t.Helper()
	s.StopClaiming()
	b := s.MarkTerminating()
	b.Killed(s.deps.Killer.Kill(t.Context(), b.Targets()))
	return b, b.Snapshot(ctx)
}

func TestDrainTakesManySnapshotsAFewAtATime(t *testing.T) {
	const sessions, atOnce = 50, 5
	s := newSnapping(t, `echo + >> $3; sleep 0.02; echo - >> $3`, func(set *setup) { set.cfg.Snapshots = atOnce })
	for i := range sessions {
		s.serve(t, holdfast.SessionKey(fmt.Sprintf("k%d", i)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the budget
	defer cancel()
	b, r := s.drained(t, ctx)
	if r.Count != sessions || len(r.Failed) > 0 || r.Took < r.Longest || r.Longest < holdfast.Millis(20*time.Millisecond) {
		t.Errorf("%+v", r)
	}
	if n, err := b.Release(ctx); err != nil || n != sessions {
		t.Errorf("released %d, %v", n, err)
	}
	running, most := 0, 0
	for _, sign := range s.notes(t) {
		if running++; sign == "-" {
			running -= 2
		}
		most = max(most, running)
	}
	if most > atOnce || most < 2 {
		t.Errorf("%d snapshots at once, %d are allowed", most, atOnce)
	}
	s.empty(t)
}

// TestDrainWhoseSnapshotsHang: a drain ends within its budget and releases all sessions,
// those with a finished snapshot first.
func TestDrainWhoseSnapshotsHang(t *testing.T) {
	const sessions = 50
	s := newSnapping(t, `[ $1 = quick ] || sleep 600`, func(set *setup) {
		set.cfg.Snapshots = 4
		withPlain(set)
	})
	if _, err := s.Start(t.Context(), "plain", "plain"); err != nil {
		t.Fatal(err)
	}
	s.serve(t, "quick")
	for i := range sessions - 1 {
		s.serve(t, holdfast.SessionKey(fmt.Sprintf("k%d", i)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // end the budget when the expected state is reached
		defer cancel()
		poll.Until(t, "the session without a snapshot is released first", func() bool {
			_, err := s.store.Get(context.Background(), "plain")
			return errors.Is(err, holdfast.ErrNotFound)
		})
	}()
	b, r := s.drained(t, ctx)
	if r.Count != sessions || len(r.Failed) < sessions-1 {
		t.Errorf("%d snapshots, %d failed", r.Count, len(r.Failed))
	}
	for _, f := range r.Failed {
		if f.Reason == "" || f.Key == "" || f.Epoch == 0 || f.Key == "plain" {
			t.Errorf("%+v", f)
		}
	}
	if n, err := b.Release(t.Context()); err != nil || n != sessions+1 {
		t.Errorf("released %d, %v", n, err)
	}
	s.empty(t)
}

// Sessions without a snapshot are released while the engine is still paused. The others
// are released after their snapshots.
func TestDrainGivesUpFirstWhatHasNoSnapshot(t *testing.T) {
	s := newSnapping(t, note, withPlain)
	if _, err := s.Start(t.Context(), "plain", "plain"); err != nil {
		t.Fatal(err)
	}
	r := s.serve(t, "alice")
	s.StopClaiming()
	b := s.MarkTerminating()
	b.Killed(s.deps.Killer.Kill(t.Context(), b.Targets()))
	if n := b.GiveUp(t.Context()); n != 1 {
		t.Errorf("%d were released", n)
	}
	if o := s.records(t); len(o) != 1 || o[0].Key != "alice" || o[0].Epoch != r.Epoch {
		t.Errorf("the records are %v", o)
	}
	if taken := b.Snapshot(t.Context()); taken.Count != 1 || len(taken.Failed) > 0 {
		t.Errorf("%+v", taken)
	}
	if n, err := b.Release(t.Context()); err != nil || n != 2 {
		t.Errorf("released %d, %v", n, err)
	}
	s.empty(t)
}

// withPlain adds the same template without a snapshot, "plain".
func withPlain(set *setup) {
	t := set.cfg.Templates[0]
	t.Name, t.Snapshot = "plain", Snapshot{}
	set.cfg.Templates = append(set.cfg.Templates, t)
}

// TestNextAgentTakesAnUnfinishedSnapshot: no other node can have owned the session
// meanwhile.
func TestNextAgentTakesAnUnfinishedSnapshot(t *testing.T) {
	s := newSnapping(t, note, nil)
	s.block(t)
	r := s.serve(t, "alice")
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { _, err := s.Stop(ctx, "alice"); stopped <- err }()
	poll.Until(t, "the snapshot is being taken", func() bool { return len(s.notes(t)) == 1 })
	s.end()
	cancel()
	if err := <-stopped; !errors.Is(err, context.Canceled) {
		t.Errorf("the stop returned %v", err)
	}
	if o := s.records(t); len(o) != 1 || o[0].Epoch != r.Epoch {
		t.Fatalf("records %v", o)
	}
	if err := os.Remove(s.file + ".wait"); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, s.set)
	n.empty(t)
	if got := s.notes(t); !slices.Equal(got, []string{"alice", "alice"}) {
		t.Errorf("snapshots of %q", got)
	}
	if again := n.serve(t, "alice"); again.Epoch <= r.Epoch {
		t.Errorf("epoch %d after %d", again.Epoch, r.Epoch)
	}
}
