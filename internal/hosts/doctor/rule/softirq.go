package rule

import "holdfast/internal/hosts/doctor/fact"

const softirqShare = 0.30

// softirq finds a CPU that spends its time on packets and timers instead of programs.
func softirq() Rule {
	return Rule{
		Name:      "softirq",
		Signal:    "softirq time of each CPU (/proc/stat), packets dropped at a full backlog (softnet_stat), packets of each network namespace; whether more softirqs are the network's or those of disks, and then the sender of most writes",
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
			title, cures := "network interrupts take up a CPU", []Cure{
				{What: "Distribute received packets over the CPUs.", Command: "echo f > /sys/class/net/DEVICE/queues/rx-0/rps_cpus"},
				{What: "Enlarge the backlog if bursts are dropped.", Command: "sysctl -w net.core.netdev_max_backlog=5000"},
			}
			culprit := fact.Subject{Device: most.Subject.Device}
			if most.Value <= softirqShare {
				title = "packets are dropped before programs get them: the backlog of a CPU is full"
			}
			if flood, share := flooding(s); share > 0 {
				culprit = flood
			} else if drops == 0 && ofDisks(s) {
				if writer, rate, all := topWriter(s); rate > all/2 {
					culprit.Cgroup, culprit.Pid, culprit.Command = writer.Cgroup, writer.Pid, writer.Command
				}
				title, cures = "interrupts of disks take up a CPU", []Cure{{What: "Let other CPUs serve the disk's interrupts.", Command: "cat /proc/interrupts; echo LIST > /proc/irq/NUMBER/smp_affinity_list"}}
			}
			return []Finding{{
				Severity: Warning,
				Title:    title,
				Evidence: []Evidence{
					{"softirq time of " + most.Subject.Device, percent(most.Value), "under 30 %"},
					{"packets dropped at a full backlog", number(drops), "0"},
				},
				Culprit: culprit,
				Cures:   cures,
			}}
		},
	}
}

// ofDisks reports whether more softirqs are those of disks than of the network.
func ofDisks(s *fact.Set) bool {
	network, _ := s.Host(fact.SoftirqsNet)
	disks, known := s.Host(fact.SoftirqsDisk)
	return known && disks > network
}

// floodRate is the number of packets per second from which a container can be the cause.
const floodRate = 10_000

// flooding returns the container that receives over half of all packets, if one does.
func flooding(s *fact.Set) (fact.Subject, float64) {
	fs := s.Of(fact.Packets)
	all := total(fs)
	if len(fs) == 0 || fs[0].Subject.Cgroup == "" || fs[0].Value < floodRate || fs[0].Value < all/2 {
		return fact.Subject{}, 0
	}
	return fs[0].Subject, fs[0].Value / all
}
