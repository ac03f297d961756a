package rule

import (
	"fmt"
	"slices"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
)

// dropsAgain is the number of drops of the page cache in an examination from which a program does
// so again and again.
const dropsAgain = 2

// reclaimsAgain is the rate per second of reclaims of control groups' memory by one process of the
// host from which it does so again and again.
const reclaimsAgain = 0.5

// dropCaches finds a program that makes the kernel drop its caches.
func dropCaches() Rule {
	return Rule{
		Name:      "drop-caches",
		Signal:    "drop_pagecache and drop_slab of vmstat, which count writes to /proc/sys/vm/drop_caches, and the kernel's log (/dev/kmsg), which shows the process; or else the drains of LRU batches (workqueue_queue_work) on that path. Reclaims of control groups' memory by process (mm_vmscan_memcg_reclaim_begin), and pages that containers read again",
		Threshold: "two drops of the page cache in the observation; a single one, and drops of slab, are a notice. The process with over half of the log's lines is named if it still runs, otherwise the one with over half of the drains. Or a process outside containers, without a limit, reclaims 0.5 times a second, and containers that have not reached their limit read over 100 pages/s again",
		Why:       "after a drop every container reads its files from the disks again. The memory was available before: the kernel reclaims its caches when a program needs memory. A single drop may be a test, or an operator's. Slab is cheap to build again, and a cure of the doctor drops it",
		Source:    "Documentation/admin-guide/sysctl/vm.rst, drop_caches; fs/drop_caches.c, which writes no log after a value of 4. The threshold is a judgement",
		Needs:     []string{fact.CacheDrops, fact.SlabDrops},
		Judge: func(s *fact.Set) []Finding {
			pages, _ := s.Host(fact.CacheDrops)
			slab, _ := s.Host(fact.SlabDrops)
			if pages+slab == 0 {
				return reclaimers(s)
			}
			x := Finding{
				Severity: severityOf(pages >= dropsAgain), Title: "a program made the kernel drop its caches",
				Evidence: []Evidence{
					{"drops of the page cache", number(pages), "0"},
					{"drops of dentries, inodes and other slab", number(slab), "0"},
				},
				Cures: []Cure{
					{What: "Remove the job that writes to drop_caches. MemAvailable of /proc/meminfo counts caches as available memory.", Command: "dmesg | grep drop_caches; grep -rs drop_caches /etc/cron* /var/spool/cron /etc/systemd/system"},
					{What: "If it is to make room for large pages, compact memory instead.", Command: "echo 1 >/proc/sys/vm/compact_memory"},
				},
			}
			if pages >= dropsAgain {
				x.Title = "a program makes the kernel drop its page cache again and again: containers read their files from the disks again"
			}
			x.Culprit, x.Evidence = droppedBy(s, x.Evidence)
			x.Victims = victims(s, x.Culprit.Cgroup, blocked(s))
			return append([]Finding{x}, reclaimers(s)...)
		},
	}
}

// reclaimers finds programs of the host that make the kernel reclaim the memory of containers, by
// memory.reclaim of cgroup v2 or memory.force_empty of v1. Other processes reclaim the memory of
// groups whose limit is reached: that of their own.
func reclaimers(s *fact.Set) (found []Finding) {
	var reads []fact.Subject
	pages := 0.0
	for _, f := range s.Of(fact.GroupRefaults) {
		if hits, _ := s.Group(fact.GroupLimitHits, f.Subject.Cgroup); f.Value >= manyRefaults && hits == 0 && fact.ContainerID(f.Subject.Cgroup) != "" {
			reads, pages = append(reads, f.Subject), pages+f.Value
		}
	}
	if len(reads) == 0 {
		return nil
	}
	for _, f := range s.Of(fact.ReclaimBy) {
		group := f.Subject.Cgroup
		_, limited := s.Group(fact.GroupLimit, group)
		if f.Value < reclaimsAgain || fact.ContainerID(group) != "" || limited || kernelThread(f.Subject.Command) {
			continue
		}
		found = append(found, Finding{
			Severity: byHarm(victims(s, group, blocked(s))), Title: "a program of the host reclaims the memory of containers, which then read it from the disks again",
			Evidence: []Evidence{
				{"reclaims by the named program", perSecond(f.Value), "0/s"},
				{"pages that containers below their limit read again", perSecond(pages), "under 100/s"},
			},
			Culprit: f.Subject,
			Victims: reads[:min(len(reads), shownVictims)],
			Cures:   []Cure{{What: "Let it reclaim less: memory.pressure of a group shows when its tasks wait for memory that was reclaimed. The kernel reclaims caches when a program needs memory."}},
		})
	}
	return found
}

// droppedBy returns the process that makes the drops, if it is known, and adds what is known of it
// as evidence.
func droppedBy(s *fact.Set, evidence []Evidence) (fact.Subject, []Evidence) {
	most, value, sum := mostOf(s.Of(fact.DropsBy))
	if sum > 0 {
		evidence = append(evidence, Evidence{"of them by " + most.Command + ", as the kernel's log shows", fmt.Sprintf("%s of %s", number(value), number(sum)), "-"})
	}
	if most.Pid > 0 && value > sum/2 {
		return most, evidence
	}
	// A drop of the page cache first drains the LRU batches of all CPUs. The drain's process is known
	// also if it has ended, and in a pid namespace.
	drains := slices.DeleteFunc(s.Of(fact.DrainsBy), func(f fact.Fact) bool {
		return !slices.ContainsFunc(f.Subject.Kernel, func(function string) bool { return strings.HasPrefix(function, "drop_caches_sysctl_handler") })
	})
	if most, value, sum = mostOf(drains); value > sum/2 {
		return most, evidence
	}
	return fact.Subject{}, evidence
}

// mostOf returns the command with the largest sum of facts, with its process if it is only one,
// the sum, and that of all.
func mostOf(fs []fact.Fact) (most fact.Subject, value, all float64) {
	type command struct{ group, name string }
	of := func(s fact.Subject) command { return command{s.Cgroup, s.Command} }
	sums := make(map[command]float64)
	for _, f := range fs {
		sums[of(f.Subject)] += f.Value
		all += f.Value
	}
	for _, f := range fs {
		switch {
		case sums[of(f.Subject)] > value:
			most, value = f.Subject, sums[of(f.Subject)]
		case of(f.Subject) == of(most) && f.Subject.Pid != most.Pid:
			most.Pid = 0
		}
	}
	return most, value, all
}
