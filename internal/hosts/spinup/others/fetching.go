package others

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast/internal/hosts/spinup"
)

// How often the engine's directory is checked, and how often a found pull is
// announced again, because announcements expire.
const (
	lookEvery     = time.Second
	announceAgain = time.Minute
	tmpDir        = "tmp"
	blobPrefix    = "GetImageBlob"
)

// fetching announces pulls of other clients while they run, which no event
// reports before their end. Docker's classic image store keeps each layer in a
// file of its own from the first byte until it is extracted (moby,
// distribution/pull_v2.go createDownloadFile; the daemon's temporary directory is
// in its data root). The containerd image store leaves files of broken downloads
// behind; the engine reports its downloads instead (Fetcher).
type fetching struct {
	cfg       Config
	reported  bool // by the engine
	announced time.Time
	end       func() // nil: nothing is announced
}

// look updates the announcement from the current state of the directory.
func (f *fetching) look(now time.Time) {
	if !f.reported && !f.blobs() || f.cfg.Busy() {
		f.stop()
		return
	}
	if f.end != nil && now.Sub(f.announced) < announceAgain {
		return
	}
	end := f.cfg.Begin(spinup.ForOther, "a pull")
	f.stop()
	f.end, f.announced = end, now
}

func (f *fetching) stop() {
	if f.end != nil {
		f.end()
		f.end = nil
	}
}

// blobs reports whether layers are being fetched or wait to be extracted.
func (f *fetching) blobs() bool {
	root := f.cfg.DataRoot()
	if root == "" {
		return false
	}
	entries, err := os.ReadDir(filepath.Join(root, tmpDir))
	if err != nil {
		return false // another image store has none, or the engine is elsewhere
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), blobPrefix) })
}
