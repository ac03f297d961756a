package rule

import (
	"fmt"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	churnStarts = 0.5 // /s
	churnBusy   = 0.2 // share of the examination
	churnMostly = 0.5 // share of the time of all clients
	// churnCost is the least CPU time of a start, in seconds, and churnShare the share of the
	// CPUs from which starts may harm others.
	churnCost  = 0.1
	churnShare = 0.25
)

// containerChurn finds a program that has containers, or commands in containers, started
// without a pause.
func containerChurn() Rule {
	return Rule{
		Name:      "container-churn",
		Signal:    "five times a second: processes whose parent is an engine's shim, and new connections to an engine's Unix socket",
		Threshold: "at least one start in two seconds, and a group whose programs have new connections for over 20 % of the time, and for over half of the time of all such groups; a warning from starts that take a quarter of the CPUs, at 0.1 s each, if a container is slowed down",
		Why:       "a start of a container takes 80 to 260 ms of CPU time and makes and removes control groups, and a command in a container about a fourth of that. Starts that live for less than 200 ms are not counted",
		Source:    "measured (docs/pools.md). The thresholds are judgements: a client is at work for a part of a start only, and on busy CPUs for a smaller one",
		Needs:     []string{fact.EnginesSeen, fact.Starts, fact.HostCPUs},
		Judge: func(s *fact.Set) []Finding {
			starts, _ := s.Host(fact.Starts)
			most, all := largest(s.Of(fact.ClientBusy))
			if starts < churnStarts || most.Value < churnBusy || most.Value < churnMostly*all {
				return nil
			}
			var victims []fact.Subject
			if cpus, _ := s.Host(fact.HostCPUs); starts*churnCost >= churnShare*cpus {
				victims = harmed(s, most.Subject.Cgroup)
			}
			return []Finding{{
				Severity: byHarm(victims),
				Title:    "a program has containers, or commands in containers, started without a pause",
				Evidence: []Evidence{
					{"starts", fmt.Sprintf("at least %.1f/s", starts), "some a minute"},
					{"time with an engine's client at work", percent(most.Value), "-"},
				},
				Culprit: most.Subject,
				Victims: victims,
				Cures: []Cure{
					{What: "Start fewer: a longer interval of health checks, one container that serves many jobs, a restart with backoff."},
					{What: "Keep containers that are started ahead, so that a job does not wait for its start.", Command: "templates: [{…, warm: 4}] # docs/pools.md"},
				},
			}}
		},
	}
}
