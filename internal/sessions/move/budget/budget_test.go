package budget

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func someRates(t *rapid.T) Rates {
	line := func(name string) Line {
		return guess(Pace{time.Duration(rapid.Int64Range(0, 2e9).Draw(t, name)), time.Duration(rapid.Int64Range(0, 5e7).Draw(t, name+" per MB"))})
	}
	return Rates{Save: line("save"), Spill: line("spill"), Send: line("send"), Restore: line("restore")}
}

func someLimits(t *rapid.T) Limits {
	return Limits{
		Time:     time.Duration(rapid.Int64Range(-1e9, 120e9).Draw(t, "time")),
		Lanes:    rapid.IntRange(1, 8).Draw(t, "lanes"),
		Memory:   rapid.Int64Range(0, 2e9).Draw(t, "memory"),
		Disk:     rapid.SampledFrom([]int64{0, 1e8, 1e10}).Draw(t, "disk"),
		MaxImage: rapid.SampledFrom([]int64{1e7, 1e9, 4e9}).Draw(t, "most"),
	}
}

func someSessions(t *rapid.T) []Session {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Session {
		return Session{
			Bytes:    rapid.SampledFrom([]int64{0, 1e6, 3e7, 2.5e8, 1e9, 3e9}).Draw(t, "size") + rapid.Int64Range(0, 1e6).Draw(t, "more"),
			Priority: rapid.IntRange(-2, 2).Draw(t, "priority"), Connected: rapid.Bool().Draw(t, "connected"),
		}
	}), 0, 40).Draw(t, "sessions")
}

// The selected sessions are saved in time on a simulated machine whose lanes share the
// rates. A session that is not selected does not fit beside the bigger losses.
func TestPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, l, r := someSessions(t), someLimits(t), someRates(t)
		d := Plan(all, l, r)
		if len(d.Save)+len(d.Lost) != len(all) {
			t.Fatalf("%d saved and %d lost of %d", len(d.Save), len(d.Lost), len(all))
		}
		if d.Takes > l.Time && len(d.Save) > 0 {
			t.Fatalf("the estimate is %v, the limit %v", d.Takes, l.Time)
		}
		if took := simulate(all, d, l, r); took > d.Takes+time.Millisecond {
			t.Fatalf("the saves took %v, the estimate was %v", took, d.Takes)
		}
		seen := make([]bool, len(all))
		for _, s := range d.Save {
			if seen[s.Index] {
				t.Fatal("a session is saved twice")
			}
			seen[s.Index] = true
			if b := all[s.Index].Bytes; b > l.MaxImage || b > l.room(s.Place) {
				t.Fatalf("%d bytes in place %d", b, s.Place)
			}
		}
		for i := 1; i < len(d.Save); i++ {
			if byLoss(all[d.Save[i-1].Index], all[d.Save[i].Index]) > 0 {
				t.Fatal("a smaller loss comes first")
			}
		}
		for _, lost := range d.Lost {
			if seen[lost.Index] || lost.Why == "" {
				t.Fatalf("%+v", lost)
			}
			bigger := set{limits: l, rates: r}
			for _, s := range d.Save {
				if byLoss(all[s.Index], all[lost.Index]) < 0 {
					bigger = bigger.with(all[s.Index].Bytes, s.Place)
				}
			}
			for _, at := range []Place{InMemory, OnDisk} {
				b := all[lost.Index].Bytes
				if b <= l.MaxImage && l.room(at) > 0 && b <= l.room(at) && bigger.with(b, at).takes() <= l.Time {
					t.Fatalf("%+v would fit in place %d beside the bigger losses: %+v", all[lost.Index], at, d)
				}
			}
		}
	})
}

// With more time, no bigger loss is given up.
func TestMoreTimeLosesNothingBigger(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, l, r := someSessions(t), someLimits(t), someRates(t)
		before := Plan(all, l, r)
		l.Time += time.Duration(rapid.Int64Range(0, 60e9).Draw(t, "more"))
		after := Plan(all, l, r)
		// The first difference in the order of loss is a session that is saved in addition.
		for _, i := range orderOf(all) {
			was := slices.ContainsFunc(before.Save, func(s Saved) bool { return s.Index == i })
			is := slices.ContainsFunc(after.Save, func(s Saved) bool { return s.Index == i })
			if was != is {
				if was {
					t.Fatalf("session %d is lost with more time", i)
				}
				return
			}
		}
	})
}

func orderOf(all []Session) []int {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return byLoss(all[i], all[j]) })
	return order
}

// job is a session in the model, with the remaining time of each of its parts.
type job struct {
	at    Place
	bytes int64
	part  int
	left  [4]float64 // seconds: fixed of saving, its bytes, fixed of sending, its bytes
}

// simulate executes a decision on a model of a machine and returns the duration. Active
// sessions share the rate of saving or of sending, and a session starts only if its image
// fits.
func simulate(all []Session, d Decision, l Limits, r Rates) time.Duration {
	var queue, active []*job
	for _, s := range d.Save {
		b := all[s.Index].Bytes
		save := r.Save.Pace()
		if s.Place == OnDisk {
			save = r.Spill.Pace()
		}
		send := r.Send.Pace()
		queue = append(queue, &job{at: s.Place, bytes: b, left: [4]float64{
			save.Fixed.Seconds(), save.bytes(b).Seconds(), send.Fixed.Seconds(), send.bytes(b).Seconds(),
		}})
	}
	now := 0.0
	for len(queue)+len(active) > 0 {
		for len(queue) > 0 && len(active) < d.Lanes && fits(active, queue[0], l) {
			active, queue = append(active, queue[0]), queue[1:]
		}
		sharers := map[int]int{}
		for _, j := range active {
			sharers[j.part]++
		}
		speed := func(j *job) float64 {
			if j.part%2 == 0 {
				return 1
			}
			return 1 / float64(sharers[j.part])
		}
		step := math.Inf(1)
		for _, j := range active {
			step = min(step, j.left[j.part]/speed(j))
		}
		now += step
		for _, j := range active {
			j.left[j.part] -= step * speed(j)
		}
		active = slices.DeleteFunc(active, func(j *job) bool {
			for j.part < len(j.left) && j.left[j.part] < 1e-9 {
				j.part++
			}
			return j.part == len(j.left)
		})
	}
	return time.Duration(now * 1e9)
}

func fits(active []*job, next *job, l Limits) bool {
	sum := next.bytes
	for _, j := range active {
		if j.at == next.at {
			sum += j.bytes
		}
	}
	return sum <= l.room(next.at)
}

func TestPlanStatesReasons(t *testing.T) {
	r := Rates{Save: guess(Pace{time.Second, 10 * time.Millisecond}), Spill: guess(Pace{time.Second, 100 * time.Millisecond}), Send: guess(Pace{0, 10 * time.Millisecond})}
	l := Limits{Time: 10 * time.Second, Lanes: 2, Memory: 4e8, Disk: 1e9, MaxImage: 2e9}
	all := []Session{
		{Bytes: 1e8},                // 3 s, in memory
		{Bytes: 6e8, Priority: -1},  // not in memory, and on disk it takes 67 s
		{Bytes: 15e8, Priority: -1}, // fits nowhere
		{Bytes: 3e9, Priority: 5},   // over the limit of an image
		{Bytes: 5e7, Priority: 1},   // first
	}
	d := Plan(all, l, r)
	if len(d.Save) != 2 || d.Save[0] != (Saved{4, InMemory}) || d.Save[1] != (Saved{0, InMemory}) || d.Lanes != 2 {
		t.Errorf("%+v", d)
	}
	if want := 4 * time.Second; (d.Takes - want).Abs() > time.Millisecond {
		t.Errorf("the estimate is %v", d.Takes)
	}
	for i, says := range map[int]string{3: "the limit of an image is 2000.0 MB", 1: "10.0 s", 2: "space for 1000.0 MB"} {
		j := slices.IndexFunc(d.Lost, func(l Lost) bool { return l.Index == i })
		if j < 0 || !strings.Contains(d.Lost[j].Why, says) {
			t.Errorf("session %d: %+v", i, d.Lost)
		}
	}
	l.Time = 80 * time.Second
	if d := Plan(all, l, r); len(d.Save) != 3 || d.Save[2] != (Saved{1, OnDisk}) {
		t.Errorf("with more time: %+v", d)
	}
}

// A line learns the pace of slow and fast machines.
func TestRatesAreLearned(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Pace{time.Duration(rapid.Int64Range(0, 5e9).Draw(t, "fixed")), time.Duration(rapid.Int64Range(1e5, 1e8).Draw(t, "per MB"))}
		line := FirstGuess().Save
		for i := range 150 {
			bytes, sharers := int64(i%7)*30e6+1e6, float64(i%4+1)
			line.Learn(bytes, want.Fixed+time.Duration(sharers*float64(want.bytes(bytes))), sharers)
		}
		got := line.Pace()
		if (got.Fixed-want.Fixed).Abs() > 20*time.Millisecond || (got.PerMB-want.PerMB).Abs() > want.PerMB/20+100*time.Microsecond {
			t.Fatalf("learned %v, want %v", got, want)
		}
	})
	rapid.Check(t, func(t *rapid.T) { // for any observations
		line := FirstGuess().Save
		for range rapid.IntRange(0, 20).Draw(t, "n") {
			line.Learn(rapid.Int64Range(0, 1e12).Draw(t, "bytes"), time.Duration(rapid.Int64Range(0, 1e13).Draw(t, "took")), rapid.Float64Range(0, 9).Draw(t, "sharers"))
		}
		if p := line.Pace(); p.Fixed < 0 || p.PerMB < 0 {
			t.Fatalf("%v", p)
		}
	})
}

func TestRatesAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rates.json")
	if r, err := Load(path); err != nil || r != FirstGuess() {
		t.Errorf("without a file: %+v, %v", r, err)
	}
	r := FirstGuess()
	r.Send.Learn(1e9, time.Second, 1)
	if err := r.Store(path); err != nil {
		t.Fatal(err)
	}
	if again, err := Load(path); err != nil || again != r {
		t.Errorf("%+v became %+v, %v", r, again, err)
	}
	for _, text := range []string{"", "{}", `{"save":{"n":-1}}`, "no"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := Load(path); err == nil || r != FirstGuess() {
			t.Errorf("%q: %+v, %v", text, r, err)
		}
	}
}
