package rule

import (
	"fmt"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	socketLeast = 256 << 10 // B/s
	queuedMost  = 0.5       // share of all queued data from which a namespace is named
)

// socketMemory finds TCP sockets that use the memory of all, or will soon.
func socketMemory() Rule {
	return Rule{
		Name:      "socket-memory",
		Signal:    "memory of all TCP sockets (/proc/net/sockstat), once a second, compared with tcp_mem; orphans, which no process has any more, compared with tcp_max_orphans; the data in the queues of each network namespace",
		Threshold: "over 90 % of one of the limits; or it grew by over 256 KiB/s in each third of the time, and reaches the limit within 30 minutes at that rate. That is a notice until half of it is used",
		Why:       "at tcp_mem's second value the kernel shrinks the windows of all connections of the host, and at the third it drops data. At tcp_max_orphans it resets connections whose data is not sent. cgroup v1 charges this memory to no container. Traffic that increases fills the queues once, and they stop growing",
		Source:    "tcp(7); Documentation/networking/ip-sysctl.rst. The thresholds are judgements",
		Needs:     []string{fact.SocketMemory, fact.SocketLimit},
		Judge: func(s *fact.Set) []Finding {
			used, _ := s.Host(fact.SocketMemory)
			limit, _ := s.Host(fact.SocketLimit)
			orphans, _ := s.Host(fact.SocketOrphans)
			rate, _ := s.Host(fact.SocketGrowth)
			low, _ := s.Host(fact.SocketLow)
			x := Finding{Severity: Warning, Evidence: []Evidence{{"memory of TCP sockets, of all containers", fmt.Sprintf("%s of %s", bytes(used), bytes(limit)), "under 90 %"}}}
			at := time.Duration(0)
			if rate > 0 {
				at = time.Duration(max(0, limit-used) / rate * float64(time.Second)).Round(time.Second)
			}
			switch {
			case used > nearLimit*limit:
				x.Title = "TCP sockets use the memory that they may have; the kernel slows down all connections"
			case orphans > nearLimit:
				x.Title = "connections that their processes have closed reach the limit; the kernel resets them"
			case low >= socketLeast && at > 0 && at <= growthHorizon:
				x.Title = fmt.Sprintf("at their present growth TCP sockets use the memory that they may have in %v", at)
				x.Severity = severityOf(used > limit/2)
			default:
				return nil
			}
			if low >= socketLeast {
				x.Evidence = append(x.Evidence, Evidence{"growth", bytes(rate) + "/s", "0 B/s, on average"})
			}
			if orphans > 0 {
				x.Evidence = append(x.Evidence, Evidence{"orphans, of tcp_max_orphans", percent(orphans), "under 90 %"})
			}
			x.Culprit, x.Evidence = queuedBy(s, x.Evidence)
			x.Cures = []Cure{
				{What: "See which connections keep data: a peer does not read, or the program closes them before the peer has read.", Command: fmt.Sprintf("nsenter --target %s --net ss --tcp --numeric --memory state all", pid(x.Culprit))},
				{What: "Let the program set TCP_USER_TIMEOUT, so that the kernel gives up connections whose peer does not read."},
			}
			return []Finding{x}
		},
	}
}

func pid(s fact.Subject) string {
	if s.Pid == 0 {
		return "PID"
	}
	return fmt.Sprint(s.Pid)
}

// queuedBy returns the namespace that has over half of the data in queues.
func queuedBy(s *fact.Set, evidence []Evidence) (fact.Subject, []Evidence) {
	all := s.Of(fact.SocketQueued)
	sum := total(all)
	if len(all) == 0 || all[0].Value <= queuedMost*sum {
		return fact.Subject{}, evidence
	}
	of := all[0]
	evidence = append(evidence, Evidence{"data in the sockets of the network that is named", fmt.Sprintf("%s of %s", bytes(of.Value), bytes(sum)), "-"})
	for _, f := range s.Of(fact.SocketLeft) {
		if f.Subject.Device == of.Subject.Device && f.Value > 0 {
			evidence = append(evidence, Evidence{"of that in sockets that no process has", bytes(f.Value), "0 B"})
		}
	}
	return of.Subject, evidence
}
