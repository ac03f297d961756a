package spinup

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// LabelJob is on every container of `holdfast run`, which records their spin-ups
// itself: who watches the engine leaves them out.
const LabelJob = "holdfast.job"

// FileName is the Store's file in an agent's data directory.
const FileName = "spinup.db"

// Outcomes are all of them.
func Outcomes() []Outcome { return []Outcome{OK, Failed, Stopped} }

// Causes are all of them.
func Causes() []Cause {
	return []Cause{NoCause, NoImage, BadName, Denied, NoPlatform, NoSpace, Unreachable, Corrupt, CutShort, EngineDown, Canceled, Other}
}

// maxAhead is how far another process's clock may be ahead of this one's.
const maxAhead = time.Minute

// Validate checks a record that another process made: that its words are ours,
// because metrics have them as labels; that its id goes with its time; and that
// it does not say of a spin-up that failed that it went well.
func (r Record) Validate() error {
	if err := r.checkWords(); err != nil {
		return err
	}
	if id, err := hex.DecodeString(r.ID); err != nil || len(id) != idBytes || r.ID[:2*timeBytes] != firstID(r.Begun) {
		return fmt.Errorf("id: %.64q is not the id of a spin-up that began at %v", r.ID, r.Begun)
	}
	if time.Until(r.Begun) > maxAhead {
		return fmt.Errorf("begun: %v has yet to come", r.Begun)
	}
	for phase, took := range r.Times {
		if !slices.Contains(Phases(), phase) || took < 0 {
			return fmt.Errorf("times_ms: %.64q with %v", phase, took)
		}
	}
	if r.Took < 0 {
		return fmt.Errorf("took_ms: it is %v", r.Took)
	}
	if r.Pull != nil {
		if err := r.Pull.check(); err != nil {
			return fmt.Errorf("pull: %w", err)
		}
	}
	return r.checkOutcome()
}

func (r Record) checkWords() error {
	switch {
	case !slices.Contains(Kinds(), r.Kind):
		return fmt.Errorf("kind: there is no %.64q", r.Kind)
	case !slices.Contains(Outcomes(), r.Outcome):
		return fmt.Errorf("outcome: there is no %.64q", r.Outcome)
	case !slices.Contains(Causes(), r.Cause):
		return fmt.Errorf("cause: there is no %.64q", r.Cause)
	case r.Failed != "" && !slices.Contains(Phases(), r.Failed):
		return fmt.Errorf("failed_in: there is no phase %.64q", r.Failed)
	case r.Image == "":
		return errors.New("image: there is none")
	}
	return nil
}

// checkOutcome holds a success to be one.
func (r Record) checkOutcome() error {
	if r.Outcome != OK {
		return nil
	}
	switch {
	case r.Error != "" || r.Cause != NoCause || r.Failed != "":
		return fmt.Errorf("outcome: it is %s, and there is an error", r.Outcome)
	case r.Pull != nil && !r.Pull.Done:
		return fmt.Errorf("outcome: it is %s, and the image is not there", r.Outcome)
	}
	return nil
}

// check looks at what is counted.
func (p Pull) check() error {
	for _, t := range []Transfer{p.Download, p.Extract} {
		if t.Bytes < 0 || t.Wall < 0 || t.Sum < 0 || !(t.Rate >= 0) || math.IsInf(t.Rate, 0) {
			return errors.New("it has a figure below 0")
		}
	}
	if p.Took < 0 || p.Retries < 0 {
		return errors.New("it has a figure below 0")
	}
	return nil
}

// Bounded is the record with what came from outside cut to the size that a Store
// keeps, and that one request to an agent can carry.
func (r Record) Bounded() Record {
	r.bound()
	return r
}
