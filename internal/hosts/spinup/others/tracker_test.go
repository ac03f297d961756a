package others

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"holdfast"
	"holdfast/internal/hosts/spinup"
	"holdfast/internal/platform/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// begun is the time of the first create call of a test.
var begun = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time {
	return begun.Add(time.Duration(seconds * float64(time.Second)))
}

// errLost is the error of a query without an answer in time.
var errLost = context.DeadlineExceeded

// stage is a tracker with its results.
type stage struct {
	*tracker
	records  []spinup.Record
	asks     []string
	full     bool // no more can be asked
	underWay map[string]int
	ended    map[string]int
}

func newStage() *stage {
	s := &stage{underWay: map[string]int{}, ended: map[string]int{}}
	s.tracker = newTracker(Config{
		Own:    []string{"holdfast.session", spinup.LabelJob},
		Cohort: func() spinup.Cohort { return spinup.Cohort{Driver: "overlay2"} },
		Begin: func(kind spinup.Kind, name string) func() {
			s.underWay[name]++
			ended := false
			return func() {
				if !ended {
					s.underWay[name]--
				}
				ended = true
			}
		},
		Record:    func(r spinup.Record) { s.records = append(s.records, r) },
		Connected: func() {},
		Log:       slog.New(slog.DiscardHandler),
	}, func(id string) bool {
		if !s.full {
			s.asks = append(s.asks, id)
		}
		return !s.full
	})
	s.add(engine.Event{Gap: true})
	return s
}

// happens adds events of container c: an action and its second.
func (s *stage) happens(actions ...any) {
	for i := 0; i < len(actions); i += 2 {
		action := actions[i].(string)
		ev := engine.Event{Type: engine.OfContainer, ID: "c", Name: "web", Image: "nginx", Action: action, Time: at(actions[i+1].(float64))}
		switch action {
		case "connect", "disconnect":
			ev.Type, ev.ID, ev.Container = engine.OfNetwork, "net", "c"
		case "die":
			ev.ExitCode = 3
		case "die well":
			ev.Action = "die"
		case "pull":
			ev.Type, ev.ID = engine.OfImage, "nginx:latest"
		}
		s.add(ev)
	}
}

// tells answers the oldest query.
func (s *stage) tells(c engine.Container, err error) {
	id := s.asks[0]
	s.asks = s.asks[1:]
	s.answered(answer{id, c, err})
}

// made returns an engine's answer about a container whose create call came at second 0.
func made(checked bool) engine.Container {
	return engine.Container{Created: begun, Healthcheck: checked}
}

func ms(seconds float64) holdfast.Millis { return holdfast.Millis(seconds * float64(time.Second)) }

func TestPhases(t *testing.T) {
	for name, c := range map[string]struct {
		play  func(*stage)
		times map[spinup.Phase]holdfast.Millis
		took  float64
		ended spinup.Outcome
		in    spinup.Phase
	}{
		"asked before the start": {func(s *stage) {
			s.happens("create", 3.)
			s.tells(made(false), nil)
			s.happens("connect", 10., "start", 10.5)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3), spinup.Start: ms(.5)}, 10.5, spinup.OK, ""},
		"asked after the start": {func(s *stage) {
			s.happens("create", 3., "connect", 10., "start", 10.5)
			s.tells(made(false), nil)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3), spinup.Start: ms(.5)}, 10.5, spinup.OK, ""},
		"gone before it could be asked about, by an error": {func(s *stage) {
			s.happens("create", 3., "connect", 10., "start", 10.5, "die", 11., "destroy", 12.)
			s.tells(engine.Container{}, holdfast.ErrNotFound)
		}, map[spinup.Phase]holdfast.Millis{spinup.Start: ms(.5)}, 8, spinup.Failed, spinup.Ready},
		"gone before it could be asked about, without one": {func(s *stage) {
			s.happens("create", 3., "connect", 10., "start", 10.5, "die well", 11., "destroy", 12.)
			s.tells(engine.Container{}, holdfast.ErrNotFound)
		}, map[spinup.Phase]holdfast.Millis{spinup.Start: ms(.5)}, 7.5, spinup.OK, ""},
		"gone, and its end is heard of later": {func(s *stage) {
			s.happens("create", 3., "connect", 10., "start", 10.5)
			s.tells(engine.Container{}, holdfast.ErrNotFound)
			s.happens("die", 11.)
			s.tells(engine.Container{}, holdfast.ErrNotFound)
		}, map[spinup.Phase]holdfast.Millis{spinup.Start: ms(.5)}, 8, spinup.Failed, spinup.Ready},
		"the engine answers the second time, and it is checked": {func(s *stage) {
			s.happens("create", 3., "connect", 10., "start", 10.5)
			s.tells(engine.Container{}, errLost)
			s.sweep(time.Now())
			s.tells(made(true), nil)
			s.happens("health_status: healthy", 15.5)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3), spinup.Start: ms(.5), spinup.Ready: ms(5)}, 15.5, spinup.OK, ""},
		"the engine answers the second time, and it is not": {func(s *stage) {
			s.happens("create", 3., "connect", 10., "start", 10.5)
			s.tells(engine.Container{}, errLost)
			s.sweep(time.Now())
			s.tells(made(false), nil)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3), spinup.Start: ms(.5)}, 10.5, spinup.OK, ""},
		"it dies while the engine does not answer, and was checked": {func(s *stage) {
			s.happens("create", 3., "connect", 10., "start", 10.5, "die", 15.5)
			s.tells(engine.Container{}, errLost)
			s.sweep(time.Now())
			s.tells(made(true), nil)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3), spinup.Start: ms(.5)}, 15.5, spinup.Failed, spinup.Ready},
		"it dies while the engine does not answer, and was not checked": {func(s *stage) {
			s.happens("create", 3., "connect", 10., "start", 10.5, "die", 15.5)
			s.tells(engine.Container{}, errLost)
			s.sweep(time.Now())
			s.tells(made(false), nil)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3), spinup.Start: ms(.5)}, 10.5, spinup.OK, ""},
		"it dies, and the engine never answers": {func(s *stage) {
			s.happens("create", 3., "connect", 10., "start", 10.5, "die", 15.5)
			s.tells(engine.Container{}, errLost)
			s.sweep(time.Now().Add(time.Minute))
		}, map[spinup.Phase]holdfast.Millis{spinup.Start: ms(.5)}, 12.5, spinup.Failed, spinup.Ready},
		"unhealthy, and the engine never answers": {func(s *stage) {
			s.full = true
			s.happens("create", 3., "connect", 10., "start", 10.5, "health_status: unhealthy", 15.5)
		}, map[spinup.Phase]holdfast.Millis{spinup.Start: ms(.5)}, 12.5, spinup.Failed, spinup.Ready},
		"it runs, and the engine never answers": {func(s *stage) {
			s.happens("create", 3., "connect", 10., "start", 10.5)
			s.tells(engine.Container{}, errLost)
			s.sweep(time.Now().Add(ReadyWithin + time.Second))
		}, map[spinup.Phase]holdfast.Millis{spinup.Start: ms(.5)}, 7.5, spinup.OK, ""},
		"it could be asked about later only": {func(s *stage) {
			s.full = true
			s.happens("create", 3., "connect", 10., "start", 10.5)
			s.full = false
			s.sweep(time.Now())
			s.tells(made(false), nil)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3), spinup.Start: ms(.5)}, 10.5, spinup.OK, ""},
		"without a network": {func(s *stage) {
			s.happens("create", 3.)
			s.tells(made(false), nil)
			s.happens("start", 10.5)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3)}, 10.5, spinup.OK, ""},
		"it ends at once": {func(s *stage) {
			s.happens("create", 3., "connect", 10., "start", 10.5, "die", 10.6)
			s.tells(made(false), nil)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3), spinup.Start: ms(.5)}, 10.5, spinup.OK, ""},
		"healthy": {func(s *stage) {
			s.happens("create", 3.)
			s.tells(made(true), nil)
			s.happens("connect", 10., "start", 10.5, "health_status: healthy", 15.5)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3), spinup.Start: ms(.5), spinup.Ready: ms(5)}, 15.5, spinup.OK, ""},
		"unhealthy": {func(s *stage) {
			s.happens("create", 3.)
			s.tells(made(true), nil)
			s.happens("connect", 10., "start", 10.5, "health_status: unhealthy", 15.5)
			s.tells(made(true), nil)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3), spinup.Start: ms(.5)}, 15.5, spinup.Failed, spinup.Ready},
		"it dies before it is healthy": {func(s *stage) {
			s.happens("create", 3.)
			s.tells(made(true), nil)
			s.happens("connect", 10., "start", 10.5, "die", 15.5)
			s.tells(made(true), nil)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3), spinup.Start: ms(.5)}, 15.5, spinup.Failed, spinup.Ready},
		"it dies before it is known that it is to be healthy": {func(s *stage) {
			s.happens("create", 3., "connect", 10., "start", 10.5, "die", 15.5)
			s.tells(made(true), nil)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3), spinup.Start: ms(.5)}, 15.5, spinup.Failed, spinup.Ready},
		"it is killed before it is healthy": {func(s *stage) {
			s.happens("create", 3.)
			s.tells(made(true), nil)
			s.happens("start", 10.5, "kill", 15., "die", 15.5)
			s.tells(made(true), nil)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3)}, 15.5, spinup.Stopped, spinup.Ready},
		"it is never healthy": {func(s *stage) {
			s.happens("create", 3.)
			s.tells(made(true), nil)
			s.happens("start", 10.)
			s.sweep(time.Now().Add(ReadyWithin + time.Second))
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3)}, 610, spinup.Failed, spinup.Ready},
		"it does not start, by its death": {func(s *stage) {
			s.happens("create", 3.)
			s.tells(made(false), nil)
			s.happens("connect", 10., "die", 10.5)
			s.tells(engine.Container{Created: begun, Error: "no such program"}, nil)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3)}, 10.5, spinup.Failed, spinup.Start},
		"it does not start, by its network": {func(s *stage) {
			s.happens("create", 3.)
			s.tells(made(false), nil)
			s.happens("connect", 10., "disconnect", 10.5, "die", 10.6, "destroy", 10.7)
			s.tells(engine.Container{}, holdfast.ErrNotFound)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3)}, 10.5, spinup.Failed, spinup.Start},
		"why it failed is never told": {func(s *stage) {
			s.happens("create", 3.)
			s.tells(made(false), nil)
			s.happens("connect", 10., "die", 10.5)
			s.sweep(time.Now().Add(time.Minute))
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3)}, 10.5, spinup.Failed, spinup.Start},
		"removed before it was started": {func(s *stage) {
			s.happens("create", 3.)
			s.tells(made(false), nil)
			s.happens("destroy", 10.)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3)}, 10, spinup.Stopped, ""},
		"its start was missed": {func(s *stage) {
			s.happens("create", 3.)
			s.tells(made(false), nil)
			s.happens("connect", 9.)
			s.add(engine.Event{Gap: true})
			c := made(false)
			c.State, c.StartedAt = "running", at(20)
			s.tells(c, nil)
		}, map[spinup.Phase]holdfast.Millis{spinup.Create: ms(3)}, 20, spinup.OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage()
			c.play(s)
			if len(s.records) != 1 {
				t.Fatalf("%d records: %+v", len(s.records), s.records)
			}
			r := s.records[0]
			if r.Kind != spinup.ForOther || r.Image != "nginx" || r.Container != "c" || r.Name != "web" || r.Cohort.Driver != "overlay2" || r.Pull != nil {
				t.Errorf("%+v", r)
			}
			if r.Outcome != c.ended || r.Failed != c.in || r.Took != ms(c.took) || fmt.Sprint(r.Times) != fmt.Sprint(c.times) {
				t.Errorf("%s in %q after %v with %v, want %s in %q after %v with %v", r.Outcome, r.Failed, r.Took, r.Times, c.ended, c.in, ms(c.took), c.times)
			}
			if (r.Outcome == spinup.OK) != (r.Error == "" && r.Cause == spinup.NoCause) {
				t.Errorf("%s with the error %q and the cause %q", r.Outcome, r.Error, r.Cause)
			}
			if err := r.Validate(); err != nil {
				t.Error(err)
			}
			if len(s.pending) != 0 || s.underWay["web"] != 0 {
				t.Errorf("left: %d pending, %v under way", len(s.pending), s.underWay)
			}
		})
	}
}

func TestNoSpinups(t *testing.T) {
	for name, play := range map[string]func(*stage){
		"a session's": func(s *stage) {
			s.add(engine.Event{Type: engine.OfContainer, ID: "c", Action: "create", Labels: map[string]string{"holdfast.session": "alice"}})
			s.happens("start", 1.)
		},
		"a run's": func(s *stage) {
			s.add(engine.Event{Type: engine.OfContainer, ID: "c", Action: "create", Labels: map[string]string{spinup.LabelJob: "run"}})
			s.happens("start", 1.)
		},
		"a start of a container that was there": func(s *stage) { s.happens("connect", 1., "start", 2., "die", 3., "destroy", 4.) },
		"one that is not started": func(s *stage) {
			s.happens("create", 1.)
			s.tells(made(false), nil)
			s.sweep(time.Now().Add(StartWithin + time.Second))
		},
		"one that vanished during a gap in the events": func(s *stage) {
			s.happens("create", 1.)
			s.tells(made(false), nil)
			s.add(engine.Event{Gap: true})
			s.tells(engine.Container{}, holdfast.ErrNotFound)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage()
			play(s)
			if len(s.records) != 0 || len(s.pending) != 0 || s.underWay["web"] != 0 {
				t.Errorf("%+v, %d pending, %v", s.records, len(s.pending), s.underWay)
			}
		})
	}
}

func TestUnderWayUntilStarted(t *testing.T) {
	s := newStage()
	s.happens("create", 1.)
	s.tells(made(true), nil)
	if s.underWay["web"] != 1 {
		t.Error("a created container is not under way")
	}
	s.happens("start", 2.)
	if s.underWay["web"] != 0 || len(s.records) != 0 {
		t.Errorf("a started one is: %v, %+v", s.underWay, s.records)
	}
}

func TestPullBefore(t *testing.T) {
	for image, want := range map[string]bool{"nginx": true, "nginx:latest": true, "docker.io/library/nginx": true, "nginx:1": false, "sha256:abc": false} {
		s := newStage()
		s.happens("pull", -1.)
		s.add(engine.Event{Type: engine.OfContainer, ID: "c", Image: image, Action: "create", Time: at(1)})
		s.tells(made(false), nil)
		s.happens("start", 2.)
		if got := !s.records[0].Pulled.IsZero(); got != want {
			t.Errorf("%s: pulled is %v", image, s.records[0].Pulled)
		}
	}
	s := newStage()
	s.happens("pull", -61., "create", 1.)
	s.tells(made(false), nil)
	s.happens("start", 2.)
	if !s.records[0].Pulled.IsZero() {
		t.Error("a pull of long ago is a part of the spin-up")
	}
}

// TestBounded sends any events in any order. The tables stay bounded, each container has
// at most one record, a success has no error, and at the end no spin-up is in progress.
func TestBounded(t *testing.T) {
	actions := []string{"create", "start", "kill", "die", "destroy", "health_status: healthy", "health_status: unhealthy", "connect", "disconnect", "pull"}
	rapid.Check(t, func(t *rapid.T) {
		s := newStage()
		created := map[string]int{}
		for i := range rapid.IntRange(1, 400).Draw(t, "events") {
			id := fmt.Sprint(rapid.IntRange(0, 8).Draw(t, "container"))
			ev := engine.Event{Type: engine.OfContainer, ID: id, Name: id, Image: "image" + id, Action: rapid.SampledFrom(actions).Draw(t, "action"), Time: at(float64(i))}
			switch ev.Action {
			case "create":
				created[id]++
			case "connect", "disconnect":
				ev.Type, ev.Container = engine.OfNetwork, id
			case "pull":
				ev.Type = engine.OfImage
			}
			s.full = rapid.Bool().Draw(t, "full")
			s.add(ev)
			if rapid.Bool().Draw(t, "gap") && i%20 == 0 {
				s.add(engine.Event{Gap: true})
			}
			for len(s.asks) > 0 && rapid.Bool().Draw(t, "answer") {
				var err error
				if rapid.Bool().Draw(t, "lost") {
					err = errors.New("lost")
				}
				s.tells(made(rapid.Bool().Draw(t, "checked")), err)
			}
		}
		for len(s.asks) > 0 {
			s.tells(made(false), nil)
		}
		s.sweep(time.Now().Add(StartWithin + ReadyWithin))
		records := map[string]int{}
		for _, r := range s.records {
			records[r.Container]++
			if err := r.Validate(); err != nil {
				t.Fatalf("%+v: %v", r, err)
			}
		}
		for id, n := range records {
			if n > created[id] {
				t.Fatalf("%d records of container %s, which was made %d times", n, id, created[id])
			}
		}
		for name, n := range s.underWay {
			if n != 0 {
				t.Fatalf("%s is under way %d times", name, n)
			}
		}
		if len(s.pending) > 0 {
			t.Fatalf("%d are pending", len(s.pending))
		}
	})
}

func TestManyAreBounded(t *testing.T) {
	s := newStage()
	s.full = true
	const extra = 500
	for i := range maxPending + extra {
		id := fmt.Sprint(i)
		s.add(engine.Event{Type: engine.OfContainer, ID: id, Name: id, Action: "create", Time: at(float64(i))})
		s.add(engine.Event{Type: engine.OfImage, ID: "image:" + id, Action: "pull", Time: at(float64(i))})
	}
	if len(s.pending) != maxPending || len(s.pulled) != maxPulled || s.pending["0"] != nil || s.pending[fmt.Sprint(maxPending+extra-1)] == nil {
		t.Errorf("%d pending, %d pulled", len(s.pending), len(s.pulled))
	}
	s.full = false
	for i := range 5 * maxPending {
		id := fmt.Sprint("short", i)
		s.add(engine.Event{Type: engine.OfContainer, ID: id, Name: id, Action: "create", Time: at(float64(i))})
		s.tells(made(false), nil)
		s.add(engine.Event{Type: engine.OfContainer, ID: id, Name: id, Action: "start", Time: at(float64(i) + 1)})
	}
	if len(s.pending) > maxPending {
		t.Errorf("%d containers are pending", len(s.pending))
	}
	s.dropAll()
	for name, n := range s.underWay {
		if n != 0 {
			t.Errorf("%s is under way %d times", name, n)
		}
	}
}
