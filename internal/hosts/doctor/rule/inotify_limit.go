package rule

import "holdfast/internal/hosts/doctor/fact"

// inotifyLimit finds a user with nearly all inotify watches or instances of the limit in
// use. All containers of one user share the limit.
func inotifyLimit() Rule {
	return Rule{
		Name:      "inotify-limit",
		Signal:    "inotify instances and watches of each user, counted in the fdinfo of every process, compared with fs.inotify.max_user_instances and max_user_watches",
		Threshold: "over 90 %. A process is named if its control group has at least half of them",
		Why:       "at 100 % inotify_init fails with \"too many open files\" and inotify_add_watch with \"no space left on device\", in every container of that user",
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
			return found
		},
	}
}
