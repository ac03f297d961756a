package rule

import "holdfast/internal/hosts/doctor/fact"

const (
	manyRetransmits = 10   // /s
	retransmitShare = 0.02 // of the segments sent
	manyUnanswered  = 1    // /s
)

// tcpRetransmits finds containers whose connections lose segments, or get no answer.
func tcpRetransmits() Rule {
	return Rule{
		Name:      "tcp-retransmits",
		Signal:    "RetransSegs and OutSegs of Tcp in /proc/PID/net/snmp, and TCPSynRetrans of /proc/PID/net/netstat, by network namespace",
		Threshold: "over 10/s and 2 % of the segments sent. A notice if over one handshake a second is sent again",
		Why:       "a lost segment is sent again after a round trip, or after 200 ms and more, and the connection slows down: if 2 % are lost, it carries about nine segments in each round trip. A handshake is sent again after 1, 3 and 7 s: its packets are dropped without an answer, by a policy, a full table or queue, or because the peer is gone. A peer that refuses answers at once",
		Source:    "RFC 6298; Documentation/networking/snmp_counter.rst, ip-sysctl.rst, tcp_syn_retries; M. Mathis et al., The macroscopic behavior of the TCP congestion avoidance algorithm, 1997. The thresholds are judgements",
		Needs:     []string{fact.NamesSeen},
		Judge: func(s *fact.Set) (found []Finding) {
			for _, f := range s.Of(fact.Retransmits) {
				share := factOf(s, fact.RetransShare, f.Subject)
				if f.Value <= manyRetransmits || share <= retransmitShare {
					continue
				}
				found = append(found, Finding{
					Severity: Warning, Title: "TCP connections lose segments and send them again",
					Evidence: []Evidence{{"segments sent again", perSecond(f.Value), "0/s"}, {"of those sent", percent(share), "under 2 %"}},
					Culprit:  f.Subject,
					Cures:    lostSegments(),
				})
			}
			for _, f := range s.Of(fact.Unanswered) {
				if f.Value <= manyUnanswered {
					continue
				}
				found = append(found, Finding{
					Severity: Notice, Title: "TCP handshakes get no answer",
					Evidence: []Evidence{{"handshakes sent again", perSecond(f.Value), "0/s"}},
					Culprit:  f.Subject,
					Cures: append([]Cure{
						{What: "List the connections that are being made, with their peers.", Command: "nsenter -t PID -n ss -nto state syn-sent"},
					}, lostSegments()...),
				})
			}
			return found
		},
	}
}

// lostSegments tells where packets are lost.
func lostSegments() []Cure {
	return []Cure{
		{What: "See whether this host drops packets: a policy, a full table of connections, a full queue.", Command: "nft list ruleset | grep drop; tc -s qdisc; ip -s link; nstat -az | grep -i drop"},
	}
}
