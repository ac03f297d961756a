package spinup

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// LabelJob is a label of every container of `holdfast run`. That command records their
// spin-ups itself, so watchers of the engine ignore these containers.
const LabelJob = "holdfast.job"

// FileName is the Store's file in an agent's data directory.
const FileName = "spinup.db"

// Outcomes returns all outcomes.
func Outcomes() []Outcome { return []Outcome{OK, Failed, Stopped} }

// Causes returns all causes.
func Causes() []Cause {
	return []Cause{NoCause, NoImage, BadName, Denied, NoPlatform, NoSpace, Unreachable, Corrupt, Unreadable, CutShort, EngineDown, Canceled, Other}
}

// maxAhead is how far the clock of another process may be ahead.
const maxAhead = time.Minute

// Validate checks a record made by another process: its words must be known,
// because they become metric labels; its id must match its time; and a failed
// spin-up must not claim success.
func (r Record) Validate() error {
	if err := r.checkWords(); err != nil {
		return err
	}
	if id, err := hex.DecodeString(r.ID); err != nil || len(id) != idBytes || r.ID[:2*timeBytes] != firstID(r.Begun) {
		return fmt.Errorf("id: %.64q is not the id of a spin-up that began at %v", r.ID, r.Begun)
	}
	if time.Until(r.Begun) > maxAhead {
		return fmt.Errorf("begun: %v is in the future", r.Begun)
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
		return fmt.Errorf("kind: %.64q is unknown", r.Kind)
	case !slices.Contains(Outcomes(), r.Outcome):
		return fmt.Errorf("outcome: %.64q is unknown", r.Outcome)
	case !slices.Contains(Causes(), r.Cause):
		return fmt.Errorf("cause: %.64q is unknown", r.Cause)
	case r.Failed != "" && !slices.Contains(Phases(), r.Failed):
		return fmt.Errorf("failed_in: the phase %.64q is unknown", r.Failed)
	case r.Image == "":
		return errors.New("image: missing")
	}
	return nil
}

// checkOutcome checks that a success has neither an error nor a missing image.
func (r Record) checkOutcome() error {
	if r.Outcome != OK {
		return nil
	}
	switch {
	case r.Error != "" || r.Cause != NoCause || r.Failed != "":
		return fmt.Errorf("outcome: it is %s, but there is an error", r.Outcome)
	case r.Pull != nil && !r.Pull.Done:
		return fmt.Errorf("outcome: it is %s, but the image is missing", r.Outcome)
	}
	return nil
}

// check checks the counts.
func (p Pull) check() error {
	for _, t := range []Transfer{p.Download, p.Extract} {
		if t.Bytes < 0 || t.Wall < 0 || t.Sum < 0 || !(t.Rate >= 0) || math.IsInf(t.Rate, 0) {
			return errors.New("it has a negative figure")
		}
	}
	if p.Took < 0 || p.Retries < 0 {
		return errors.New("it has a negative figure")
	}
	return nil
}
