package rule

import "holdfast/internal/hosts/doctor/fact"

const connFull = 0.80

// conntrackFull finds connection tracking tables that are full or nearly full.
func conntrackFull() Rule {
	return Rule{
		Name:      "conntrack-full",
		Signal:    "entries and drops of /proc/PID/net/stat/nf_conntrack, compared with nf_conntrack_max, in each network namespace",
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
				found = append(found, Finding{
					Severity: severity(lost > 0),
					Title:    "the connection tracking table is full or nearly full",
					Evidence: []Evidence{
						{"in use", percent(f.Value), "under 80 %"},
						{"connections dropped during the examination", number(lost), "0"},
						{"network namespace", f.Subject.Device, "-"},
					},
					Culprit: f.Subject,
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
