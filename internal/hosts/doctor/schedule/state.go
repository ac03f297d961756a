package schedule

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"holdfast/internal/platform/atomicfile"
)

// FileName is the name of the state in the data directory.
const FileName = "cure-schedule.json"

// saved is what a schedule remembers of a cure.
type saved struct {
	Config    Entry     `json:"config"` // the state ends when it changes
	LastRun   time.Time `json:"last_run"`
	Running   bool      `json:"running"`
	Guarded   int       `json:"guarded,omitempty"` // runs in a row that ended themselves to prevent harm
	Outcome   string    `json:"outcome,omitempty"`
	Stopped   string    `json:"stopped,omitempty"`
	StoppedAt time.Time `json:"stopped_at,omitzero"`
}

// maxState bounds the file.
const maxState = 64 << 10

// load reads the state of the entries. A cure during which the agent died is stopped. The
// last run counts under a changed configuration, too. It needs the lock.
func (s *Schedule) load() error {
	fi, err := os.Stat(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && fi.Size() > maxState {
		err = fmt.Errorf("%s: it has %d bytes", s.file, fi.Size())
	}
	if err != nil {
		return err
	}
	text, err := os.ReadFile(s.file)
	if err != nil {
		return err
	}
	all := make(map[string]saved)
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("%s: %w", s.file, err)
	}
	for _, e := range s.entries {
		was, ok := all[e.Cure]
		switch {
		case !ok:
			continue
		case was.Config != e.Entry:
			was = saved{LastRun: was.LastRun}
		case was.Running:
			was.Running, was.Stopped, was.StoppedAt = false, "the agent died during its last run", time.Now().UTC()
		}
		e.saved = was
	}
	return s.save()
}

// save writes the state. It needs the lock.
func (s *Schedule) save() error {
	all := make(map[string]saved)
	for _, e := range s.entries {
		e.Config = e.Entry
		all[e.Cure] = e.saved
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return atomicfile.Write(s.file, text, 0o600)
}
