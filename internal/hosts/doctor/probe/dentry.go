package probe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// dentryProbe reads the cache of directory entries.
func dentryProbe() Probe {
	return Probe{
		Name: "dentry", Sees: "negative directory entries", Once: true,
		Gives: []string{fact.DentryTotal, fact.DentryNegative, fact.DentryBytes},
		Start: func(_ context.Context, h Host) (Finish, error) {
			return func(context.Context, time.Duration) ([]fact.Fact, error) { return readDentries(h) }, nil
		},
	}
}

// dentrySize is the size of a struct dentry on 64-bit systems, used if slabinfo cannot be
// read.
const dentrySize = 192

// readDentries reads the cache's figures.
func readDentries(h Host) ([]fact.Fact, error) { return countDentries(h, dentryBytes(h)) }

// dentryBytes returns the size of an entry.
func dentryBytes(h Host) float64 {
	size := float64(dentrySize)
	if slab, err := read(string(h.Proc) + "/slabinfo"); err == nil {
		for line := range strings.Lines(slab) {
			if f := strings.Fields(line); len(f) > 3 && f[0] == "dentry" {
				if s, err := floats(f[3]); err == nil && s[0] > 0 {
					size = s[0]
				}
			}
		}
	}
	return size
}

// countDentries reads dentry-state, Documentation/admin-guide/sysctl/fs.rst:
// nr_dentry, nr_unused, age_limit, want_pages, nr_negative (0 before 5.0), dummy.
func countDentries(h Host, size float64) ([]fact.Fact, error) {
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
