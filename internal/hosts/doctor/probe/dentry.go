package probe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/procfs"

	"holdfast/internal/hosts/doctor/fact"
)

// dentryProbe reads the cache of directory entries.
func dentryProbe() Probe {
	return Probe{
		Name: "dentry", Sees: "negative directory entries", Once: true,
		Gives: []string{fact.DentryTotal, fact.DentryNegative, fact.DentryBytes},
		Open: func(_ context.Context, h Host, _ time.Time) (Series, error) {
			size := dentryBytes(h) // constant while the kernel runs
			return current(func(context.Context) ([]fact.Fact, error) { return readDentries(h, size) }), nil
		},
	}
}

// dentrySize is the size of a struct dentry on 64-bit systems, used if slabinfo cannot be
// read.
const dentrySize = 192

// dentryBytes returns the size of an entry.
func dentryBytes(h Host) float64 {
	info, _ := parsed(h, procfs.FS.SlabInfo) // with an error no cache is known
	for _, s := range info.Slabs {
		if s.Name == "dentry" && s.ObjSize > 0 {
			return float64(s.ObjSize)
		}
	}
	return dentrySize
}

// readDentries reads dentry-state, Documentation/admin-guide/sysctl/fs.rst:
// nr_dentry, nr_unused, age_limit, want_pages, nr_negative (0 before 5.0), dummy.
func readDentries(h Host, size float64) ([]fact.Fact, error) {
	text, err := read(string(h.Proc) + "/sys/fs/dentry-state")
	if err != nil {
		return nil, err
	}
	v, err := floats(text)
	if err != nil || len(v) < 5 {
		return nil, fmt.Errorf("dentry-state: unexpected format: %q", text)
	}
	if major, _ := release(h); major < 5 {
		return []fact.Fact{host(fact.DentryTotal, v[0], fact.Count)}, errors.New("before Linux 5.0 the kernel does not count negative directory entries")
	}
	return []fact.Fact{
		host(fact.DentryTotal, v[0], fact.Count),
		host(fact.DentryNegative, v[4], fact.Count),
		host(fact.DentryBytes, v[4]*size, fact.Bytes),
	}, nil
}
