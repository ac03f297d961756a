package rule

import "holdfast/internal/hosts/doctor/fact"

const logStorm = 1 << 20 // B/s

// logStorms finds a container that prints so much that the engine is busy with its log.
func logStorms() Rule {
	return Rule{
		Name:      "log-storm",
		Signal:    "size of each container's log that the engine has open (Docker and Podman)",
		Threshold: "over 1 MiB/s",
		Why:       "the engine parses and stores each line, on CPUs and a disk that all containers share, and the log grows by over 3.5 GiB an hour. A busy service prints some KiB/s",
		Source:    "docs.docker.com, json-file logging driver: without max-size a log has no limit. The threshold is a judgement",
		Needs:     []string{fact.LogsSeen},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			for _, f := range s.Of(fact.LogGrowth) {
				if f.Value <= logStorm {
					break
				}
				victims := harmed(s, f.Subject.Cgroup)
				found = append(found, Finding{
					Severity: byHarm(victims),
					Title:    "a container prints so much that the engine is busy with its log",
					Evidence: []Evidence{
						{"growth of its log", bytes(f.Value) + "/s", "some KiB/s"},
						{"in an hour", bytes(f.Value * 3600), "-"},
					},
					Culprit: f.Subject,
					Victims: victims,
					Cures: []Cure{
						{What: "Have the program print less: a higher log level."},
						{What: "Bound the log, and keep it in the engine's own format, which is cheaper.", Command: "docker run --log-driver local --log-opt max-size=10m …"},
					},
				})
			}
			return found
		},
	}
}
