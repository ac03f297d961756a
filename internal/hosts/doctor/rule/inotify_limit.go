package rule

import (
	"fmt"

	"holdfast/internal/hosts/doctor/fact"
)

// inotifyLimit finds a user with nearly all inotify watches or instances of the limit in
// use. All containers of one user share the limit. It also finds programs that do not read
// their events.
func inotifyLimit() Rule {
	return Rule{
		Name:      "inotify-limit",
		Signal:    "inotify instances and watches of each user, counted in the fdinfo of every process, compared with fs.inotify.max_user_instances and max_user_watches; the events that wait in each instance (FIONREAD of inotify(7)), twice within a second",
		Threshold: "over 90 %. A process is named if its control group has at least half of them. Events that wait are a notice from 8 bytes on for each of fs.inotify.max_queued_events, if they are not fewer a second later",
		Why:       "at 100 % inotify_init fails with \"too many open files\" and inotify_add_watch with \"no space left on device\", in every container of that user. A program that watches files reads its events within milliseconds. If its queue is full, the kernel discards events, and the program no longer knows which files have changed",
		Source:    "inotify(7), proc_sys_fs(5)",
		Needs:     []string{fact.InotifySeen},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			for _, f := range s.Of(fact.Inotify) {
				if f.Value <= nearLimit {
					continue
				}
				x := Finding{
					Severity: Warning,
					Title:    "inotify " + f.Subject.Device + ": nearly all in use",
					Evidence: []Evidence{{"inotify " + f.Subject.Device + " in use", percent(f.Value), "under 90 %"}},
					Culprit:  f.Subject,
					Cures:    []Cure{{What: "Raise the limits; a watch takes about 1 KiB.", Command: "sysctl -w fs.inotify.max_user_watches=N fs.inotify.max_user_instances=N"}},
				}
				if f.Subject.Pid == 0 {
					x.Title += ", by many containers together"
					x.Culprit = fact.Subject{}
				} else {
					x.Cures = append(x.Cures, Cure{What: "Configure the named process to watch fewer files."})
				}
				found = append(found, x)
			}
			return append(found, unread(s)...)
		},
	}
}

// unread finds programs that do not read their events.
func unread(s *fact.Set) (found []Finding) {
	for _, f := range s.Of(fact.Unread) {
		found = append(found, Finding{
			Severity: Notice, Title: "a process does not read its inotify events, and will lose some",
			Evidence: []Evidence{{"events that wait", bytes(f.Value), "0 B"}},
			Culprit:  f.Subject,
			Cures: []Cure{
				{What: "Restart the process, or find out what it waits for.", Command: fmt.Sprintf("cat /proc/%d/wchan", f.Subject.Pid)},
				{What: "If it is only slow, let more events wait.", Command: "sysctl -w fs.inotify.max_queued_events=N"},
			},
		})
	}
	return found
}
