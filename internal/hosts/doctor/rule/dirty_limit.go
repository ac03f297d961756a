package rule

import "holdfast/internal/hosts/doctor/fact"

const (
	dirtyLittle = 16 << 20 // B
	dirtyShare  = 0.05     // of memory
	dirtyOften  = 1.0 / 3  // of the looks, at which writers waited
	dirtyStall  = 0.20     // of the time, for which a task waited for disks
	dirtyExpire = 1.0      // s; the kernel's default is 30
)

// dirtyLimit finds a setting with which all writers wait for the disk, or the disk writes far more than it has to.
func dirtyLimit() Rule {
	return Rule{
		Name:      "dirty-limit",
		Signal:    "nr_dirty_threshold of vmstat, the memory that may be dirty before writers wait, and its setting: vm.dirty_bytes or vm.dirty_ratio. While it is little, twice a second nr_dirty and nr_writeback, and the io pressure of the host. vm.dirty_expire_centisecs, after which dirty memory is written",
		Threshold: "under 16 MiB, by a setting of under 5 % of memory. That is a notice; a warning if at a third of the looks writers had to wait, and a task waited for disks for over 20 % of the time. Memory that is written after less than 1 s: a notice",
		Why:       "the limit is one of the whole host. If it is so small, a write that would take microseconds waits until the disk has written other data, in each container. Some hosts have a small limit on purpose, to keep their disks' queues short. On a small or a full host 20 % of the free memory is little, and no setting is wrong. A file that is changed again within seconds is written once; if the kernel writes after a moment, the disk gets each change, and others wait for it",
		Source:    "Documentation/admin-guide/sysctl/vm.rst, dirty_bytes, dirty_ratio and dirty_expire_centisecs; mm/page-writeback.c, which allowed no ratio under 5 % until Linux 2.6.36. The other thresholds are judgements",
		Needs:     []string{fact.DirtyLimit, fact.MemTotal},
		Judge: func(s *fact.Set) []Finding {
			limit, _ := s.Host(fact.DirtyLimit)
			setting, wrong := dirtySetting(s)
			found := earlyWrites(s)
			if limit >= dirtyLittle || !wrong {
				return found
			}
			x := Finding{
				Severity: Notice, Title: "the host allows very little dirty memory: programs that write much wait for the disk",
				Evidence: []Evidence{{"memory that may be dirty, of all containers", bytes(limit), "a fifth of the memory"}, setting},
				Victims:  victims(s, "", blocked(s)),
				Cures:    []Cure{{What: "Restore the kernel's defaults, also in /etc/sysctl.d.", Command: "sysctl vm.dirty_ratio=20 vm.dirty_background_ratio=10"}},
			}
			near, ok1 := s.Host(fact.DirtyNear)
			stall, ok2 := s.Host(fact.DirtyWaits)
			if ok1 {
				x.Evidence = append(x.Evidence, Evidence{"looks at which writers had to wait", percent(near), "0 %"})
			}
			if ok2 {
				x.Evidence = append(x.Evidence, Evidence{"time for which a task waited for disks", percent(stall), "under 20 %"})
			}
			if near >= dirtyOften && stall > dirtyStall {
				x.Severity = Warning
				x.Title = "all writers wait for the disk, because the host allows very little dirty memory"
			}
			return append(found, x)
		},
	}
}

// dirtySetting returns the setting that is in force, and whether it is the cause of a small limit.
func dirtySetting(s *fact.Set) (Evidence, bool) {
	if set, ok := s.Host(fact.DirtyBytes); ok {
		memory, _ := s.Host(fact.MemTotal)
		return Evidence{"vm.dirty_bytes", bytes(set), "0 (vm.dirty_ratio)"}, set < dirtyShare*memory
	}
	ratio, ok := s.Host(fact.DirtyRatio)
	return Evidence{"vm.dirty_ratio", percent(ratio), "20 %"}, ok && ratio < dirtyShare
}

// earlyWrites finds a setting with which dirty memory is written after a moment.
func earlyWrites(s *fact.Set) []Finding {
	after, ok := s.Host(fact.DirtyExpire)
	if !ok || after >= dirtyExpire {
		return nil
	}
	return []Finding{{
		Severity: Notice, Title: "the host writes dirty memory to the disk after a moment, and so each change of a file",
		Evidence: []Evidence{{"vm.dirty_expire_centisecs", millis(after * 1000), "30 s"}},
		Cures:    []Cure{{What: "Restore the kernel's defaults, also in /etc/sysctl.d.", Command: "sysctl vm.dirty_expire_centisecs=3000 vm.dirty_writeback_centisecs=500"}},
	}}
}
