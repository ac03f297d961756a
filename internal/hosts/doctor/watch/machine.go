package watch

import (
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/internal/hosts/doctor/fact"
)

// testEvery is the time between two tests of the raw machine.
const testEvery = 6 * time.Hour

// testsMachine reports whether a burst also tests the raw machine: four times a day in a burst
// without a suspicion, because a busy host is slow, and to confirm or end a finding.
func (w *Watch) testsMachine(why string, now time.Time) bool {
	switch why {
	case regularBurst:
		return now.Sub(w.tested) >= testEvery
	case openFinding:
		return slices.ContainsFunc(w.track.list(), func(o Open) bool { return o.Rule == "slow-machine" })
	default:
		return false
	}
}

// past returns what earlier tests of the raw machine measured.
func (w *Watch) past() []fact.Fact {
	if w.deps.Store == nil {
		return nil
	}
	past, err := w.deps.Store.Past()
	if err != nil {
		w.deps.Log.Warn("doctor: the machine is not compared with its past", "err", err)
	}
	return past
}

// keepTest keeps the facts of a test for the rounds until the next test, which do not judge
// them. The sample of this minute has them if the test is one of the four a day: the tests of a
// slow machine, every five minutes, would soon be its past.
func (w *Watch) keepTest(why string, at time.Time, facts []fact.Fact) {
	ofTest := func(f fact.Fact) bool { return slices.Contains(w.deps.Machine.Gives, f.Name) }
	test := slices.DeleteFunc(slices.Clone(facts), func(f fact.Fact) bool { return !ofTest(f) })
	if why == regularBurst {
		w.sample.add(fact.Summary(test))
	}
	w.machine, w.tested = test, at
}

// fewTests is the number of tests of the raw machine from which the past is known.
const fewTests = 3

// Past returns the medians of this host's earlier tests of the raw machine, under their names
// with the prefix fact.Past; none before the third test.
func (s *Store) Past() ([]fact.Fact, error) {
	var samples []Sample
	err := s.file.View(func(tx *bbolt.Tx) (err error) {
		samples, err = newest[Sample](tx.Bucket(samplesBucket), time.Time{}, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	var past []fact.Fact
	for name, unit := range map[string]fact.Unit{
		fact.CheckCPU: fact.MiBPerSec, fact.CheckMem: fact.MiBPerSec, fact.CheckDisk: fact.Millis, fact.CheckRead: fact.Millis,
	} {
		var values []float64
		for _, s := range samples {
			if f, ok := s.Facts[name]; ok {
				values = append(values, f.Mean)
			}
		}
		if len(values) >= fewTests {
			slices.Sort(values)
			past = append(past, fact.Fact{Name: fact.Past + name, Value: values[len(values)/2], Unit: unit})
		}
	}
	return past, nil
}
