package rule

import "holdfast/internal/hosts/doctor/fact"

// manyOverflows is a rate per second. manyUnaccepted is the number of connections that wait at one Unix
// socket at both ends of the observation: a server that keeps up accepts each within microseconds.
const (
	manyOverflows  = 1
	manyUnaccepted = 5
)

// listenOverflow finds a server that accepts connections more slowly than clients make them.
func listenOverflow() Rule {
	return Rule{
		Name:      "listen-overflow",
		Signal:    "ListenOverflows, TCPReqQFullDoCookies and TCPReqQFullDrop of /proc/PID/net/netstat, by network namespace; connections that wait for an accept at a Unix socket (/proc/PID/net/unix)",
		Threshold: "over 1/s; a notice if 5 connections wait at one Unix socket at both ends of the observation",
		Why:       "the kernel ignores a handshake for which the accept queue has no space; the client tries again after 1, 3 and 7 seconds. If the queue of half-open connections is full, it refuses handshakes, or answers with a SYN cookie, which carries few of the options of TCP. A connect to a Unix socket whose queue is full waits, or fails with EAGAIN, which a web server reports as 502",
		Source:    "listen(2); unix(7); net/unix/af_unix.c; Documentation/networking/ip-sysctl.rst, tcp_abort_on_overflow. The threshold is a judgement",
		Needs:     []string{fact.NamesSeen},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			for _, queue := range []struct {
				drops, title, signal string
				cures                []Cure
			}{
				{fact.ListenDrops, "a server's accept queue is full, and its clients wait for seconds", "connections that found the queue full", []Cure{
					{What: "Let the server accept faster, or run more of them."},
					{What: "List the queues: Recv-Q is their length, Send-Q the maximum.", Command: "nsenter -t PID -n ss -lnt"},
				}},
				{fact.HalfOpenDrops, "a server's queue of half-open connections is full: clients do not end their handshakes, or send nothing", "handshakes that found the queue full", []Cure{
					{What: "Find the clients: an attack has many addresses; a server with TCP_DEFER_ACCEPT keeps each connection half open until its client sends."},
					{What: "Raise the server's backlog and the limit of the kernel.", Command: "docker run --sysctl net.ipv4.tcp_max_syn_backlog=4096 --sysctl net.core.somaxconn=4096 …"},
					{What: "List the half-open connections.", Command: "nsenter -t PID -n ss -nt state syn-recv"},
				}},
			} {
				for _, f := range s.Of(queue.drops) {
					if f.Value > manyOverflows {
						found = append(found, Finding{
							Severity: Warning, Title: queue.title, Evidence: []Evidence{{queue.signal, perSecond(f.Value), "0/s"}},
							Culprit: f.Subject, Cures: queue.cures,
						})
					}
				}
			}
			for _, f := range s.Of(fact.UnixWaiting) {
				if f.Value < manyUnaccepted {
					continue
				}
				path := f.Subject.Device
				f.Subject.Device = ""
				found = append(found, Finding{
					Severity: Notice,
					Title:    "a server accepts the connections to its Unix socket too slowly",
					Evidence: []Evidence{{"connections that wait at " + path, number(f.Value), "0"}},
					Culprit:  f.Subject,
					Cures: []Cure{
						{What: "Run more workers, or let each request take less time."},
						{What: "List the queues: Recv-Q is their length, Send-Q the maximum.", Command: "nsenter -t PID -n ss -lx"},
					},
				})
			}
			return found
		},
	}
}
