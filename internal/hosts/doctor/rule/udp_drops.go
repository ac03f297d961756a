package rule

import "holdfast/internal/hosts/doctor/fact"

const manyDatagrams = 10 // /s

// udpDrops finds programs that read datagrams more slowly than they arrive, and a host without memory
// for datagrams.
func udpDrops() Rule {
	return Rule{
		Name:      "udp-drops",
		Signal:    "RcvbufErrors and MemErrors of Udp in /proc/PID/net/snmp, by network namespace",
		Threshold: "over 10/s: a notice. A warning if the memory for all UDP sockets of the host has no space (MemErrors)",
		Why:       "the kernel drops a datagram for which the receiver's buffer has no space, and tells neither the sender nor the receiver. A host whose limit udp_mem is reached drops those of all containers",
		Source:    "udp(7); Documentation/networking/ip-sysctl.rst, udp_mem; net/ipv4/udp.c. The threshold is a judgement",
		Needs:     []string{fact.NamesSeen},
		Judge: func(s *fact.Set) (found []Finding) {
			for _, f := range s.Of(fact.DatagramDrops) {
				if f.Value > manyDatagrams {
					found = append(found, Finding{
						Severity: Notice, Title: "a program reads its datagrams too slowly, and the kernel drops others",
						Evidence: []Evidence{{"datagrams that found the buffer full", perSecond(f.Value), "0/s"}},
						Culprit:  f.Subject,
						Cures: []Cure{
							{What: "Let the program read faster, or give its socket a larger buffer (SO_RCVBUF), which net.core.rmem_max limits."},
							{What: "List the sockets: d is the number of datagrams that each has dropped.", Command: "nsenter -t PID -n ss -lunm"},
						},
					})
				}
			}
			if lost := total(s.Of(fact.DatagramMemory)); lost > manyDatagrams {
				found = append(found, Finding{
					Severity: Warning, Title: "the memory for all UDP sockets of the host has no space, and the kernel drops datagrams of every container",
					Evidence: []Evidence{{"datagrams for which there was no memory", perSecond(lost), "0/s"}},
					Cures:    []Cure{{What: "Restore the limit net.ipv4.udp_mem: the kernel's default is up to a tenth of the memory. In use is the second figure of UDP in sockstat.", Command: "grep UDP /proc/net/sockstat; sysctl net.ipv4.udp_mem; grep -rs udp_mem /etc/sysctl.conf /etc/sysctl.d"}},
				})
			}
			return found
		},
	}
}
