package probe

import (
	"context"
	"errors"
	"os"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// dirtySmall is the limit of dirty memory, in bytes, below which it is observed how near to it the
// host is. A host of 256 MiB has more by the kernel's defaults.
const dirtySmall = 16 << 20

const dirtyEvery = 500 * time.Millisecond

// dirtyProbe reads how much memory may be dirty before the kernel makes writers wait for the disk
// (balance_dirty_pages, mm/page-writeback.c). While that is little, it looks twice a second
// whether writers have reached it.
func dirtyProbe() Probe {
	return Probe{
		Name: "dirty", Sees: "how much memory may be dirty, and whether writers wait because of it",
		Gives: []string{fact.DirtyLimit, fact.DirtyBytes, fact.DirtyRatio, fact.DirtyExpire, fact.DirtyNear, fact.DirtyWaits},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			v, err := readDirty(h)
			if err != nil {
				return nil, err
			}
			if v.limit() >= dirtySmall {
				return current(func(context.Context) ([]fact.Fact, error) { return limitFacts(h), nil }), nil
			}
			return sampled{sampling(ctx, now, dirtyEvery, func() map[string]float64 { return dirtyLevels(h) }, nil), func(samples []levels) []fact.Fact {
				return append(limitFacts(h), dirtyFacts(samples)...)
			}}, nil
		},
	}
}

// dirtyPages holds the numbers of pages that are dirty or being written, and the limits of them.
type dirtyPages struct{ now, most, background float64 }

// limit returns the limit in bytes.
func (d dirtyPages) limit() float64 { return d.most * float64(os.Getpagesize()) }

// waits reports whether writers wait: dirty_freerun_ceiling of mm/page-writeback.c is in the middle
// between the limit and the one from which the kernel writes in the background.
func (d dirtyPages) waits() bool { return d.now > (d.most+d.background)/2 }

// readDirty returns the pages of vmstat, whose limits follow the settings and the memory that may
// be dirty now.
func readDirty(h Host) (d dirtyPages, err error) {
	text, err := read(string(h.Proc) + "/vmstat")
	if err != nil {
		return d, err
	}
	n := numbers(text)
	most, ok1 := n["nr_dirty_threshold"]
	background, ok2 := n["nr_dirty_background_threshold"]
	dirty, ok3 := n["nr_dirty"]
	if !ok1 || !ok2 || !ok3 {
		return d, errors.New("vmstat has no limits of dirty pages")
	}
	return dirtyPages{now: dirty + n["nr_writeback"], most: most, background: background}, nil
}

// limitFacts returns the limit and the setting that is in force: of dirty_bytes and dirty_ratio the
// kernel sets the other to 0.
func limitFacts(h Host) []fact.Fact {
	d, err := readDirty(h)
	if err != nil {
		return nil
	}
	fs := []fact.Fact{host(fact.DirtyLimit, d.limit(), fact.Bytes)}
	if hundredths, err := number(string(h.Proc) + "/sys/vm/dirty_expire_centisecs"); err == nil {
		fs = append(fs, host(fact.DirtyExpire, hundredths/100, fact.Seconds))
	}
	set, err := number(string(h.Proc) + "/sys/vm/dirty_bytes")
	if err != nil {
		return fs
	}
	if set > 0 {
		return append(fs, host(fact.DirtyBytes, set, fact.Bytes))
	}
	if ratio, err := number(string(h.Proc) + "/sys/vm/dirty_ratio"); err == nil {
		fs = append(fs, host(fact.DirtyRatio, ratio/100, fact.Share))
	}
	return fs
}

// The levels of a sample: 1 if writers wait, and the time for which a task waited for disks, in
// seconds.
const (
	levelWaits = "waits"
	levelStall = "stall"
)

func dirtyLevels(h Host) map[string]float64 {
	s := make(sample)
	if d, err := readDirty(h); err == nil {
		s[levelWaits] = 0
		if d.waits() {
			s[levelWaits] = 1
		}
	}
	s.stall(levelStall, "some", read, string(h.Proc)+"/pressure/io")
	return s
}

func dirtyFacts(samples []levels) (fs []fact.Fact) {
	waits, known := 0.0, 0.0
	for _, s := range samples {
		if v, ok := s.of[levelWaits]; ok {
			waits, known = waits+v, known+1
		}
	}
	if known > 0 {
		fs = append(fs, host(fact.DirtyNear, waits/known, fact.Share))
	}
	first, last := samples[0], samples[len(samples)-1]
	over := last.at.Sub(first.at).Seconds()
	if n, ok := sample(last.of).grew(first.of, levelStall); ok && over > 0 {
		fs = append(fs, host(fact.DirtyWaits, n/over, fact.Share))
	}
	return fs
}
