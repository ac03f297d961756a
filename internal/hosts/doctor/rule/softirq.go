package rule

import "holdfast/internal/hosts/doctor/fact"

const softirqShare = 0.30

// softirq finds a CPU that spends its time on packets and timers instead of programs.
func softirq() Rule {
	return Rule{
		Name:      "softirq",
		Signal:    "softirq time of each CPU (/proc/stat), packets dropped at a full backlog (softnet_stat)",
		Threshold: "a CPU over 30 %, or any drop",
		Why:       "softirqs run before every program on that CPU; a dropped packet is retransmitted after at least 200 ms",
		Source:    "Documentation/networking/scaling.rst. The threshold is a judgement",
		Needs:     []string{fact.CPUSoftirq, fact.NetDrops},
		Judge: func(s *fact.Set) []Finding {
			most := s.Of(fact.CPUSoftirq)[0]
			drops, _ := s.Host(fact.NetDrops)
			if most.Value <= softirqShare && drops == 0 {
				return nil
			}
			return []Finding{{
				Severity: Warning,
				Title:    "network interrupts take up a CPU",
				Evidence: []Evidence{
					{"softirq time of " + most.Subject.Device, percent(most.Value), "under 30 %"},
					{"packets dropped at a full backlog", number(drops), "0"},
				},
				Culprit: fact.Subject{Device: most.Subject.Device},
				Cures: []Cure{
					{What: "Distribute received packets over the CPUs.", Command: "echo f > /sys/class/net/DEVICE/queues/rx-0/rps_cpus"},
					{What: "Enlarge the backlog if bursts are dropped.", Command: "sysctl -w net.core.netdev_max_backlog=5000"},
				},
			}}
		},
	}
}
