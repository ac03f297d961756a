package rule

import (
	"fmt"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	manyStops   = 3 // in an examination
	manyFreezes = 3 // changes between two samples
)

// frozen finds containers that something outside them stops and continues again and again.
func frozen() Rule {
	return Rule{
		Name:      "frozen",
		Signal:    "signals SIGSTOP to processes of a container, and the program that sends them (tracepoint signal_generate); the freezer of each container, twice a second (freezer.state, cgroup.events)",
		Threshold: "3 signals from outside the container: a warning. 3 changes between frozen and thawed: a notice",
		Why:       "a stopped or frozen program answers nothing, and its clients see pauses; no figure of its own shows them. Snapshots and backups do so, such as docker commit and docker pause. A container that stays frozen is no finding, because that is intended",
		Source:    "signal(7), docker-container-pause(1); Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst, cgroup-v2.rst. The thresholds are judgements",
		Needs:     []string{fact.StopsSeen},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			for _, f := range s.Of(fact.Stops) {
				if f.Value < manyStops {
					continue
				}
				stopped := fact.Subject{Cgroup: f.Subject.Device}
				f.Subject.Device = ""
				found = append(found, Finding{
					Severity: Warning, Title: "a program stops the processes of a container again and again",
					Evidence: []Evidence{{"signals SIGSTOP that it sent", number(f.Value), "0"}},
					Culprit:  f.Subject,
					Victims:  []fact.Subject{stopped},
					Cures: []Cure{
						{What: "Take snapshots that need no stop, such as those of the file system or the database."},
						{What: "End the program, and continue what it has stopped.", Command: fmt.Sprintf("kill %d", f.Subject.Pid)},
					},
				})
			}
			for _, f := range s.Of(fact.Freezes) {
				if f.Value < manyFreezes {
					continue
				}
				share, _ := s.Group(fact.FrozenShare, f.Subject.Cgroup)
				found = append(found, Finding{
					Severity: Notice, Title: "a container is frozen and thawed again and again",
					Evidence: []Evidence{
						{"changes between frozen and thawed", number(f.Value), "under 3"},
						{"time in which it was frozen", percent(share), "0 %"},
					},
					Victims: []fact.Subject{f.Subject},
					Cures:   []Cure{{What: "Find what pauses it.", Command: "docker events --filter event=pause --filter event=unpause"}},
				})
			}
			return found
		},
	}
}
