package rule

import "holdfast/internal/hosts/doctor/fact"

const manyOverflows = 1 // /s

// listenOverflow finds a server that accepts connections more slowly than clients make them.
func listenOverflow() Rule {
	return Rule{
		Name:      "listen-overflow",
		Signal:    "ListenOverflows of /proc/PID/net/netstat, by network namespace",
		Threshold: "over 1/s",
		Why:       "the kernel ignores a handshake for which the accept queue has no space; the client tries again after 1, 3 and 7 seconds",
		Source:    "listen(2); Documentation/networking/ip-sysctl.rst, tcp_abort_on_overflow. The threshold is a judgement",
		Needs:     []string{fact.NamesSeen},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			for _, f := range s.Of(fact.ListenDrops) {
				if f.Value <= manyOverflows {
					continue
				}
				found = append(found, Finding{
					Severity: Warning,
					Title:    "a server's accept queue is full, and its clients wait for seconds",
					Evidence: []Evidence{{"connections that found the queue full", perSecond(f.Value), "0/s"}},
					Culprit:  f.Subject,
					Cures: []Cure{
						{What: "Let the server accept faster, or run more of them."},
						{What: "List the queues: Recv-Q is their length, Send-Q the maximum.", Command: "nsenter -t PID -n ss -lnt"},
					},
				})
			}
			return found
		},
	}
}
