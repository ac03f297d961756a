package probe

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/boottime"
)

// cachesProbe counts how often programs write to /proc/sys/vm/drop_caches, and reads from the
// kernel's log which programs do.
func cachesProbe() Probe {
	return Probe{
		Name: "caches", Sees: "programs that make the kernel drop its caches",
		Gives: []string{fact.CacheDrops, fact.SlabDrops, fact.DropsBy},
		Open: func(ctx context.Context, h Host, now time.Time) (Series, error) {
			log, opened := openKernelLog(h.Kmsg), boottime.Now()
			before, err := readDrops(ctx, h)
			if err != nil {
				_ = log.Close() // it was only read
				return nil, err
			}
			return &counting[sample]{
				host: h, at: now, before: before, closer: log, read: readDrops,
				facts: func(h Host, before, after sample, _ time.Duration) ([]fact.Fact, error) {
					return dropFacts(h, before, after, log, opened), nil
				},
			}, nil
		},
	}
}

// readDrops returns the kernel's counters of drops (Linux 3.15).
func readDrops(_ context.Context, h Host) (sample, error) {
	text, err := read(string(h.Proc) + "/vmstat")
	if err != nil {
		return nil, err
	}
	n, s := numbers(text), make(sample)
	for from, to := range map[string]string{"drop_pagecache": "pages", "drop_slab": "slab"} {
		v, ok := n[from]
		if !ok {
			return nil, errors.New("the kernel does not count drops: vmstat has no " + from)
		}
		s[to] = v
	}
	return s, nil
}

func dropFacts(h Host, before, after sample, log *kernelLog, opened boottime.Instant) []fact.Fact {
	var fs []fact.Fact
	drops := 0.0
	for key, name := range map[string]string{"pages": fact.CacheDrops, "slab": fact.SlabDrops} {
		if n, ok := after.grew(before, key); ok {
			fs, drops = append(fs, host(name, n, fact.Count)), drops+n
		}
	}
	if drops == 0 {
		log.skip()
		return fs
	}
	type writer struct {
		pid     int // 0: it is unknown, or has ended
		command string
	}
	by := make(map[writer]float64)
	subjects := make(map[writer]fact.Subject)
	for _, r := range log.records(dropped) {
		d, ok := parseDrop(r)
		if !ok {
			continue
		}
		s, ok := d.process(h, opened)
		if !ok {
			s = fact.Subject{Command: d.command}
		}
		w := writer{s.Pid, s.Command}
		by[w]++
		subjects[w] = s
	}
	var writers []fact.Fact
	for w, n := range by {
		writers = append(writers, fact.Fact{Name: fact.DropsBy, Value: n, Subject: subjects[w]})
	}
	return append(fs, largest(writers, shownProcesses)...)
}

// dropped follows the writer's id in a record.
const dropped = "): drop_caches: "

// drop is a line of the kernel's log about a drop.
type drop struct {
	at      time.Duration // since the machine booted
	tid     int           // in the first pid namespace
	command string
}

// parseDrop reads a kernelRecord such as "sh (32256): drop_caches: 3" (fs/drop_caches.c). It reports
// false for others.
func parseDrop(record string) (d drop, ok bool) {
	at, text, ok := kernelRecord(record)
	if !ok {
		return d, false
	}
	end := strings.LastIndex(text, dropped)
	begin := strings.LastIndex(text[:max(end, 0)], " (")
	if begin < 0 {
		return d, false
	}
	d.at, d.command = at, text[:begin]
	tid, err := strconv.Atoi(text[begin+2 : end])
	d.tid = tid
	return d, err == nil
}

// process returns the process that wrote, if it still runs. A later one with its id began after
// the record. The clock of the log drifts from that of the processes, by seconds in a day, so a
// process that ran when the log was opened needs no comparison.
func (d drop) process(h Host, opened boottime.Instant) (fact.Subject, bool) {
	if !ownPids(h.Proc) {
		return fact.Subject{}, false
	}
	st, err := h.Proc.Stat(d.tid)
	began := time.Duration(st.Start) * (time.Second / tickHz)
	if err != nil || began > time.Duration(opened) && began > d.at {
		return fact.Subject{}, false
	}
	return processOf(h, cmp.Or(status(string(h.Proc)+"/"+strconv.Itoa(d.tid), "Tgid"), d.tid)), true
}
