// Package history records how holds ended, for operators and for metrics. It is a small
// file beside the locks of the ports, and like them it lasts until the next boot. A
// protect that is killed records nothing; its hold is undone nevertheless.
package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"holdfast"
	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/ready"
	"holdfast/internal/platform/atomicfile"
	"holdfast/internal/platform/linux/kfile"
)

// Keep is how many holds are kept in full. The totals count all holds since the boot.
const Keep = 200

const (
	fileName = "history.json"
	lockName = "history.lock"
	version  = 1
	maxSize  = 1 << 20 // bytes; ten times the size of 200 holds of maxPorts ports
	maxPorts = 64      // recorded of one hold; also the limit of kinds
)

// Hold is how one hold ended.
type Hold struct {
	At      time.Time     `json:"at"` // its end
	Ports   []uint16      `json:"ports"`
	Program string        `json:"program"` // of the command, without its directory, and without arguments, which may be secret
	Backend protect.Name  `json:"backend"`
	Took    time.Duration `json:"took_ns"` // from its start to the release of the last connection
	// Held is how many connections waited, Longest the longest wait of one.
	Held    int           `json:"held"`
	Longest time.Duration `json:"longest_ns"`
	// Waits are quantiles of the waits; nil: none waited, or the backend does not measure
	// them.
	Waits *protect.Quantiles `json:"waits,omitempty"`
	// Unanswered counts the requests that the command cut off.
	Unanswered int `json:"unanswered,omitempty"`
	// Ready is how the new server was asked; nil: it was not.
	Ready     *Ready         `json:"ready,omitempty"`
	Reason    protect.Reason `json:"reason"`
	Installed bool           `json:"installed,omitempty"`
	ExitCode  int            `json:"exit_code"`
}

// Ready is how a new server was asked whether it is ready.
type Ready struct {
	Kinds []ready.Kind `json:"kinds"` // without URLs and programs, which may be secret
	// Took is the time from when the server listened until it was ready, or until the
	// hold ended.
	Took  time.Duration `json:"took_ns"`
	Ready bool          `json:"ready"`
}

func readyOf(r *protect.Readiness) *Ready {
	if r == nil || r.Tries == 0 {
		return nil
	}
	of := &Ready{Took: r.Took, Ready: r.Ready}
	for _, a := range r.Asked[:min(len(r.Asked), maxPorts)] {
		of.Kinds = append(of.Kinds, a.Kind)
	}
	return of
}

// Failed reports whether the hold ended without a server that listens and, if it was asked,
// is ready. The server may be the new one, the old one if it has kept its sockets, or the
// one in a container.
func (h Hold) Failed() bool {
	switch h.Reason {
	case protect.NewListens, protect.OldStayed, protect.AskedFor:
		return false
	}
	return true
}

// HoldOf returns the record of a report. At is the time of the call.
func HoldOf(o protect.Options, r protect.Report) Hold {
	ports := o.Ports()
	return Hold{
		At: time.Now().UTC(), Ports: ports[:min(len(ports), maxPorts)], Program: filepath.Base(o.Program()),
		Backend: r.Backend, Installed: r.Installed, Took: r.Released.Held,
		Held: r.Released.Stats.Held, Longest: r.Released.Stats.Longest, Waits: r.Released.Stats.Waits,
		Unanswered: r.Drained.Left, Ready: readyOf(r.Released.Ready), Reason: r.Released.Reason, ExitCode: r.ExitCode,
	}
}

// Total counts the holds of one backend since the boot.
type Total struct {
	Holds       int `json:"holds"`
	Connections int `json:"connections"`
	// Failed counts the holds for which Hold.Failed is true.
	Failed  int           `json:"failed"`
	Longest time.Duration `json:"longest_ns"` // of one wait
}

// History has the recorded holds.
type History struct {
	Version int                    `json:"version"`
	Totals  map[protect.Name]Total `json:"totals"`
	Holds   []Hold                 `json:"holds"` // oldest first, the last Keep
}

// Read returns the history in the directory of the locks. It is empty if no hold ended
// since the boot. Any goroutine and process may call Read.
func Read(dir string) (History, error) {
	file := filepath.Join(dir, fileName)
	none := History{Version: version, Totals: map[protect.Name]Total{}}
	b, err := kfile.Read(file, maxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	var h History
	if err == nil {
		err = json.Unmarshal(b, &h)
	}
	if err == nil && h.Version != version {
		err = fmt.Errorf("version %d, and this program knows %d", h.Version, version)
	}
	if err != nil {
		return none, holdfast.WithHint(fmt.Errorf("read the history of holds: %w", err), "remove "+file+": it is only for looking")
	}
	if h.Totals == nil {
		h.Totals = none.Totals
	}
	return h, nil
}

// Add records one hold. Several processes may call it at the same time.
func Add(dir string, hold Hold) error {
	if err := add(dir, hold); err != nil {
		return fmt.Errorf("keep a hold in the history: %w", err)
	}
	return nil
}

func add(dir string, hold Hold) error {
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	// Other processes hold the lock while they write the small file.
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return err
	}
	h, err := Read(dir) // an unreadable history is reported, and replaced
	return errors.Join(err, write(dir, after(h, hold)))
}

// after returns the history with one more hold.
func after(h History, hold Hold) History {
	t := h.Totals[hold.Backend]
	t.Holds++
	t.Connections += hold.Held
	t.Longest = max(t.Longest, hold.Longest)
	if hold.Failed() {
		t.Failed++
	}
	h.Totals[hold.Backend] = t
	h.Holds = append(h.Holds, hold)
	h.Holds = h.Holds[max(0, len(h.Holds)-Keep):]
	return h
}

// write replaces the file atomically.
func write(dir string, h History) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return atomicfile.WriteNoSync(filepath.Join(dir, fileName), b, 0o600)
}
