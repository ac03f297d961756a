package rule

import "holdfast/internal/hosts/doctor/fact"

const connFull = 0.80

// conntrackFull is a table of connections without room.
func conntrackFull() Rule {
	return Rule{
		Name:      "conntrack-full",
		Signal:    "entries of /proc/PID/net/stat/nf_conntrack beside nf_conntrack_max, and its drops, in each network namespace",
		Threshold: "over 80 % in use, or any connection dropped",
		Why:       "a full table drops new connections without a word to either end; at 80 % a burst fills it",
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
				severity := Warning
				if lost > 0 {
					severity = Critical
				}
				found = append(found, Finding{
					Severity: severity,
					Title:    "the table of connections is full, or nearly so",
					Evidence: []Evidence{
						{"in use", percent(f.Value), "under 80 %"},
						{"connections dropped meanwhile", number(lost), "0"},
						{"network namespace", f.Subject.Device, "-"},
					},
					Culprit: f.Subject,
					Cures: []Cure{
						{What: "Make it larger; an entry takes about 320 bytes.", Command: "holdfast doctor cure sysctl net.netfilter.nf_conntrack_max --apply"},
						{What: "See who has so many.", Command: "nsenter -t PID -n conntrack -L | awk '{print $5}' | sort | uniq -c | sort -n | tail"},
					},
				})
			}
			return found
		},
	}
}
