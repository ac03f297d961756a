package rule

import (
	"slices"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	connFull = 0.80
	// manySends is the rate per second of calls from which their process is named.
	manySends = 100
)

// conntrackFull finds connection tracking tables that are full or nearly full.
func conntrackFull() Rule {
	return Rule{
		Name:      "conntrack-full",
		Signal:    "entries and drops of /proc/PID/net/stat/nf_conntrack, compared with nf_conntrack_max, in each network namespace; addresses of the entries of the host's table; calls of connect and send by process",
		Threshold: "over 80 % in use, or any connection dropped",
		Why:       "a full table drops new connections and reports it to neither end; at 80 % a burst fills it",
		Source:    "Documentation/networking/nf_conntrack-sysctl.rst",
		Needs:     []string{fact.ConnTables},
		Judge: func(s *fact.Set) []Finding {
			drops := make(map[string]float64)
			for _, d := range s.Of(fact.ConnDrops) {
				drops[d.Subject.Device] = d.Value
			}
			var found []Finding
			for _, f := range s.Of(fact.Conntrack) {
				lost := drops[f.Subject.Device]
				if f.Value <= connFull && lost == 0 {
					continue
				}
				culprit := f.Subject
				e := []Evidence{
					{"in use", percent(f.Value), "under 80 %"},
					{"connections dropped during the examination", number(lost), "0"},
					{"network namespace", f.Subject.Device, "-"},
				}
				if culprit.Cgroup == "" { // the host's table
					by, why := user(s, culprit.Device)
					culprit.Cgroup, culprit.Pid, culprit.Command = by.Cgroup, by.Pid, by.Command
					e = append(e, why...)
				}
				found = append(found, Finding{
					Severity: severity(lost > 0),
					Title:    "the connection tracking table is full or nearly full",
					Evidence: e,
					Culprit:  culprit,
					Cures: []Cure{
						{What: "Enlarge the table; an entry takes about 320 bytes.", Command: "holdfast doctor cure sysctl net.netfilter.nf_conntrack_max --apply"},
						{What: "List the addresses with the most connections.", Command: "nsenter -t PID -n conntrack -L | awk '{print $5}' | sort | uniq -c | sort -n | tail"},
					},
				})
			}
			return found
		},
	}
}

// user returns the user of the host's table: the container or the process that most of the entries are from or to, or
// else the process that makes most of the calls.
func user(s *fact.Set, table string) (fact.Subject, []Evidence) {
	for _, f := range s.Of(fact.ConnUser) {
		if f.Subject.Device == table {
			return f.Subject, []Evidence{{"entries of the table from or to the culprit", percent(f.Value), "-"}}
		}
	}
	if by, rate := sender(s); rate > 0 {
		return by, []Evidence{{"connect and send calls of the process named, which makes most of them", perSecond(rate), "-"}}
	}
	return fact.Subject{}, nil
}

// sender returns the process that makes over half of all calls of connect(2) and send(2) that
// were counted, and their rate; 0 if there is none.
func sender(s *fact.Set) (fact.Subject, float64) {
	sends := slices.DeleteFunc(s.Of(fact.CallsBy), func(c fact.Fact) bool {
		return !slices.Contains([]string{"connect", "sendto", "sendmsg", "sendmmsg"}, c.Subject.Device)
	})
	by, rate := worst(sends)
	if rate < manySends || rate <= total(sends)/2 {
		return fact.Subject{}, 0
	}
	return by, rate
}
