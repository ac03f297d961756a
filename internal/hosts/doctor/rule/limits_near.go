package rule

import (
	"fmt"
	"slices"
	"strings"

	"holdfast/internal/hosts/doctor/fact"
)

const (
	nearLimit = 0.90
	// manyZombies are more than a program starts at once and forgets; zombiesFor is the time in s for
	// which each of them has been one.
	manyZombies = 100
	zombiesFor  = 3
	// manyUnclosed is more connections than a healthy server leaves in CLOSE-WAIT, where they stay for
	// milliseconds.
	manyUnclosed = 100
	// manyTasks is the share of its limit of processes from which a container's growth is a leak: a program
	// that starts its workers has few of its limit.
	manyTasks = 0.25
	// soonFull is the time in s until a file system in memory is full, or a program has all the open
	// files or mappings that it may have, from which it is a notice.
	soonFull = 600
)

// limitsNear finds limits on processes and files that are nearly reached.
func limitsNear() Rule {
	return Rule{
		Name:      "limits-near",
		Signal:    "pids.current / pids.max of each container, its anonymous and shared memory and its memory limit, open files of each process and RLIMIT_NOFILE, mappings of each process and vm.max_map_count, locked memory of each process without CAP_IPC_LOCK and RLIMIT_MEMLOCK; address space of each process and RLIMIT_AS; the largest file that a process writes and RLIMIT_FSIZE; bytes in each System V message queue and kernel.msgmnb; zombies of each container, and outside containers of each parent, that nothing reaped during the observation; local ports towards one address, System V segments, semaphores and message queues, POSIX message queues of each namespace; each tmpfs of a container that has a size; memory for IP fragments and sockets in TIME-WAIT of each namespace (sockstat, ipfrag_high_thresh, tcp_max_tw_buckets); connections in CLOSE-WAIT of each namespace with 200 sockets. Of the host: asynchronous requests, pseudo terminals, neighbours (all of them, and for the soft limit gc_thresh2), and of a user keys, queued signals, threads (RLIMIT_NPROC), fanotify groups and pages of pipes; threads compared with pid_max and threads-max, file-nr",
		Threshold: "over 90 %. Zombies: a notice from 100 on. Neighbours: no room for one; a notice if there are more than gc_thresh2 at both ends of the observation. Memory of a container: a notice. A tmpfs that will be full, or a process that will have all the open files or mappings that it may have, within 10 minutes: a notice. So is a container that will be at its limit of processes by then, if it has over a quarter of them, and 20 more than at the begin. CLOSE-WAIT: a notice if there are 100 at both ends and not fewer at the second",
		Why:       "at 100 % fork and open fail, and programs rarely report which limit was reached. A parent reaps a zombie within milliseconds; each that it leaves counts for pids.max until the parent ends. Over gc_thresh2 the kernel removes neighbours that are not in use for each new one, also those of other containers, at most every five seconds. A connection in CLOSE-WAIT waits for the program alone: its peer has closed it, and it keeps a file descriptor until the program closes it, too",
		Source:    "Documentation/admin-guide/cgroup-v2.rst, sysctl/fs.rst, sysctl/kernel.rst; pty(7), keyrings(7), mq_overview(7), arp(7), fanotify(7), pipe(7), sigqueue(3), wait(2); sysctl/vm.rst; net/core/neighbour.c. The number of zombies is a judgement",
		Needs:     []string{fact.GroupsSeen, fact.HostThreads, fact.HostMaxPids, fact.HostFiles, fact.HostMaxFiles},
		Judge: func(s *fact.Set) []Finding {
			var found []Finding
			near := func(what string, used float64, culprit fact.Subject, cure Cure) {
				if used > nearLimit {
					found = append(found, Finding{
						Severity: Warning, Title: what + ": nearly at the limit",
						Evidence: []Evidence{{what + " in use", percent(used), "under 90 %"}},
						Culprit:  culprit, Cures: []Cure{cure},
					})
				}
			}
			for _, l := range []struct {
				fact, what string
				cure       Cure
			}{
				{fact.GroupPids, "processes of a container", Cure{What: "Raise its limit, or find out why it has so many processes.", Command: "docker update --pids-limit N CONTAINER"}},
				{fact.ProcessFiles, "open files of a process", Cure{What: "Find out which files it does not close, or raise its limit.", Command: "docker run --ulimit nofile=N …"}},
				{fact.ProcessMaps, "mappings of a process", Cure{What: "Find out which it does not unmap, or raise the limit of all processes.", Command: "holdfast doctor cure sysctl vm.max_map_count --apply"}},
				{fact.Ports, "local ports towards one address", Cure{What: "Let the program keep its connections, or widen the range.", Command: "docker run --sysctl net.ipv4.ip_local_port_range='1024 65535' …"}},
				{fact.ProcessLocked, "locked memory of a process (RLIMIT_MEMLOCK)", Cure{What: "Raise its limit: at the limit mlock(2) fails, and programs with secrets or rings for io_uring and BPF stop.", Command: "docker run --ulimit memlock=N …"}},
				{fact.ProcessMapped, "address space of a process (RLIMIT_AS)", Cure{What: "Raise its limit: at the limit mmap(2) and malloc(3) fail, though memory is free. A limit of the container's memory bounds what the process really takes.", Command: "ulimit -v KIB"}},
				{fact.TimeWait, "sockets in TIME-WAIT, of tcp_max_tw_buckets", Cure{What: "Let clients keep their connections, or close them first: the side that closes first keeps the socket for a minute. At the limit the kernel drops the state, and late packets disturb new connections.", Command: "docker run --sysctl net.ipv4.tcp_max_tw_buckets=N …"}},
				{fact.Fragments, "memory for IP fragments that wait for the rest of their datagram", Cure{What: "Find the sender of datagrams that lose fragments, and let it send smaller ones; the kernel keeps a fragment for 30 s.", Command: "nsenter -t PID -n nstat -az IpReasmFails"}},
				{fact.Segments, "System V shared memory segments of a container", Cure{What: "Remove those that nothing uses.", Command: "nsenter -t PID -i ipcs -m"}},
				{fact.Semaphores, "System V arrays of semaphores of a container", Cure{What: "Remove those that nothing uses.", Command: "nsenter -t PID -i ipcs -s"}},
				{fact.Messages, "System V message queues of a container", Cure{What: "Remove those that nothing uses.", Command: "nsenter -t PID -i ipcs -q"}},
				{fact.QueueBytes, "bytes in a System V message queue", Cure{What: "Find its slow reader: at the limit msgsnd(2) waits. The limit of a queue is kernel.msgmnb, unless its owner has changed it.", Command: "nsenter -t PID -i ipcs -q"}},
				{fact.FileSize, "size of a file that a process writes (RLIMIT_FSIZE)", Cure{What: "Raise the limit of the process: at the limit write(2) fails or a signal ends the process, though the disk has space.", Command: "docker run --ulimit fsize=BYTES …"}},
				{fact.Queues, "POSIX message queues of a container", Cure{What: "Remove those that nothing uses.", Command: "nsenter -t PID -m -i ls /dev/mqueue"}},
			} {
				for _, f := range s.Of(l.fact) {
					near(l.what, f.Value, f.Subject, l.cure)
				}
			}
			for _, f := range slices.Concat(s.Of(fact.LimitUsed), s.Of(fact.UserLimit)) {
				name := f.Subject.Device
				f.Subject.Device = ""
				cure := Cure{What: "Find out why the named process has so many, or raise the limit.", Command: "holdfast doctor cure sysctl " + name + " --apply"}
				switch name { // these are no sysctl
				case "RLIMIT_SIGPENDING":
					cure.Command = "docker run --ulimit sigpending=N …"
				case "RLIMIT_NPROC":
					cure = Cure{What: "Raise the limit, or run containers as different users: the kernel counts the threads of a user in all of them together.", Command: "docker run --ulimit nproc=N …"}
				}
				near(name+", which all containers share", f.Value, f.Subject, cure)
			}
			ratio := func(used, most string) float64 {
				u, _ := s.Host(used)
				m, _ := s.Host(most)
				if m <= 0 {
					return 0
				}
				return u / m
			}
			// Each thread has a pid, and systemd raises pid_max: most hosts reach threads-max first.
			pids, threads := ratio(fact.HostThreads, fact.HostMaxPids), ratio(fact.HostThreads, fact.HostMaxTasks)
			limit := "kernel.threads-max"
			if pids > threads {
				limit = "kernel.pid_max"
			}
			near("the host's threads", max(pids, threads), fact.Subject{}, Cure{What: "Raise the limit.", Command: "holdfast doctor cure sysctl " + limit + " --apply"})
			near("the host's open files", ratio(fact.HostFiles, fact.HostMaxFiles), fact.Subject{}, Cure{What: "Raise the limit.", Command: "holdfast doctor cure sysctl fs.file-max --apply"})
			return slices.Concat(nameParents(s, found), neighbours(s), unclosed(s), memoryDisks(s), moreProcesses(s), heldMemory(s),
				moreOf(s, "open files", fact.FilesGrown, fact.FilesGrowth, Cure{What: "Find out which files it does not close.", Command: "ls -l /proc/%d/fd"}),
				moreOf(s, "mappings", fact.MapsGrown, fact.MapsGrowth, Cure{What: "Find out which mappings it does not remove.", Command: "cat /proc/%d/maps"}))
		},
	}
}

// neighbours finds tables of neighbours that the kernel makes room in, and those without room.
func neighbours(s *fact.Set) (found []Finding) {
	for _, f := range s.Of(fact.NeighbourSoft) {
		limit := f.Subject.Device
		f.Subject.Device = ""
		drops, _ := s.Device(fact.NeighbourDrops, limit)
		removals, _ := s.Device(fact.NeighbourGC, limit)
		used, _ := s.Device(fact.LimitUsed, limit)
		if drops == 0 && (f.Value <= 1 || used > nearLimit) { // the latter is found by its limit
			continue
		}
		soft := strings.TrimSuffix(limit, "3") + "2"
		x := Finding{
			Severity: severityOf(drops > 0), Title: "the table of neighbours, which all containers share, is over its soft limit " + soft,
			Evidence: []Evidence{
				{"entries, compared with " + soft, percent(f.Value), "under 100 %"},
				{"removals of entries to make room", fmt.Sprintf("%.1f/s", removals), "0/s"},
				{"entries for which there was no room", fmt.Sprintf("%.1f/s", drops), "0/s"},
			},
			Culprit: f.Subject,
			Cures:   []Cure{{What: "Raise the limits, first " + limit + ".", Command: "holdfast doctor cure sysctl " + limit + " --apply; holdfast doctor cure sysctl " + soft + " --apply"}},
		}
		if drops > 0 {
			x.Title = "the table of neighbours, which all containers share, has no room: " + limit
		}
		found = append(found, x)
	}
	return found
}

// memoryDisks finds file systems in memory, such as /dev/shm, that are or will soon be full.
func memoryDisks(s *fact.Set) (found []Finding) {
	for _, f := range s.Of(fact.MemoryDisk) {
		point, more := f.Subject.Device, factOf(s, fact.MemoryDiskMore, f.Subject)
		fills := more > 0 && (1-f.Value)/more <= soonFull
		if f.Value <= nearLimit && !fills {
			continue
		}
		f.Subject.Device = ""
		x := Finding{
			Severity: severityOf(f.Value > nearLimit), Title: point + ", a file system in the memory of a container: nearly full",
			Evidence: []Evidence{{point + " in use", percent(f.Value), "under 90 %"}},
			Culprit:  f.Subject,
			Cures:    []Cure{{What: "Find out which files the program leaves there, or raise its size; its pages count for the container's memory.", Command: "docker run --shm-size 256m …"}},
		}
		if fills {
			x.Title = point + ", a file system in the memory of a container: it will soon be full"
			x.Evidence = append(x.Evidence, Evidence{"time until it is full, at its present growth", fmt.Sprintf("%.0f s", (1-f.Value)/more), "over 600 s"})
		}
		found = append(found, x)
	}
	return found
}

// moreOf finds programs that will soon be at a limit of the process. The command of the cure takes
// its pid.
func moreOf(s *fact.Set, what, grown, growth string, cure Cure) (found []Finding) {
	for _, f := range s.Of(grown) {
		more := factOf(s, growth, f.Subject)
		if f.Value > nearLimit || more <= 0 || (1-f.Value)/more > soonFull {
			continue // over nearLimit it has a finding already
		}
		found = append(found, Finding{
			Severity: Notice, Title: what + " of a process: at their present growth they will soon be at the limit",
			Evidence: []Evidence{
				{what + " in use", percent(f.Value), "under 90 %"},
				{"time until the limit, at their present growth", fmt.Sprintf("%.0f s", (1-f.Value)/more), "over 600 s"},
			},
			Culprit: f.Subject,
			Cures:   []Cure{{What: cure.What, Command: fmt.Sprintf(cure.Command, f.Subject.Pid)}},
		})
	}
	return found
}

// moreProcesses finds containers that will soon be at their limit of processes and threads.
func moreProcesses(s *fact.Set) (found []Finding) {
	for _, f := range s.Of(fact.GroupPidsGrowth) {
		used, ok := s.Group(fact.GroupPids, f.Subject.Cgroup)
		if !ok || used < manyTasks || used > nearLimit || f.Value <= 0 || (1-used)/f.Value > soonFull {
			continue // over nearLimit it has a finding already
		}
		found = append(found, Finding{
			Severity: Notice, Title: "processes and threads of a container: at their present growth they will soon be at the limit",
			Evidence: []Evidence{
				{"of its limit", percent(used), "under 90 %"},
				{"time until the limit, at their present growth", fmt.Sprintf("%.0f s", (1-used)/f.Value), "over 600 s"},
			},
			Culprit: f.Subject,
			Cures:   []Cure{{What: "Find out which threads or processes it does not end.", Command: "docker top CONTAINER -eLf"}},
		})
	}
	return found
}

// heldMemory finds containers and services near their memory limit with memory that the kernel cannot reclaim.
func heldMemory(s *fact.Set) (found []Finding) {
	for _, f := range s.Of(fact.GroupHeld) {
		limit, ok := s.Group(fact.GroupLimit, f.Subject.Cgroup)
		if !ok || limit <= 0 || f.Value <= nearLimit*limit {
			continue
		}
		found = append(found, Finding{
			Severity: Notice, Title: "memory that the kernel cannot reclaim: nearly at the limit of a container or service",
			Evidence: []Evidence{{"anonymous and shared memory, of its limit", percent(f.Value / limit), "under 90 %"}},
			Culprit:  f.Subject,
			Cures:    []Cure{{What: "Raise its limit, or let the program take less: a heap of a fixed size needs memory beside it.", Command: "docker update --memory N CONTAINER"}},
		})
	}
	return found
}

// factOf returns the fact of a name about the object of a process's namespace, 0 without one.
func factOf(s *fact.Set, name string, of fact.Subject) float64 {
	for _, f := range s.Of(name) {
		if f.Subject.Pid == of.Pid && f.Subject.Device == of.Device {
			return f.Value
		}
	}
	return 0
}

// unclosed finds servers that do not close connections that their clients have closed.
func unclosed(s *fact.Set) (found []Finding) {
	for _, f := range s.Of(fact.Unclosed) {
		more := factOf(s, fact.UnclosedMore, f.Subject)
		if f.Value < manyUnclosed || more < 0 {
			continue
		}
		f.Subject.Device = ""
		found = append(found, Finding{
			Severity: Notice, Title: "a server does not close connections that its clients have closed, and keeps a descriptor for each",
			Evidence: []Evidence{
				{"connections in CLOSE-WAIT", number(f.Value), "under 100"},
				{"growth of their number", fmt.Sprintf("%.1f/s", more), "0/s"},
			},
			Culprit: f.Subject,
			Cures:   []Cure{{What: "Find the connections: the program has to close each of which read(2) returns 0.", Command: "nsenter -t PID -n ss -tanp state close-wait"}},
		})
	}
	return found
}

// nameParents adds a finding for each container with many zombies. If the container is near its limit
// of processes it has one already, which then names the parent.
func nameParents(s *fact.Set, found []Finding) []Finding {
	for _, f := range s.Of(fact.Zombies) {
		if f.Over < zombiesFor {
			continue
		}
		group, contained := f.Subject.Cgroup, fact.ContainerID(f.Subject.Cgroup) != ""
		e := Evidence{"zombies, which their parent has not reaped for " + number(f.Over) + " s", number(f.Value), "0"}
		cure := Cure{What: "Repair the parent: it has to wait for its children. Its zombies end with it.", Command: fmt.Sprintf("ps --ppid %d -o pid,stat,lstart,comm", f.Subject.Pid)}
		if contained {
			cure = Cure{What: "Start the container with an init, which reaps zombies, or repair the parent named: it has to wait for its children.", Command: "docker run --init …"}
		}
		near := slices.IndexFunc(found, func(x Finding) bool { return x.Culprit.Cgroup == group && x.Culprit.Pid == 0 })
		switch {
		case contained && near >= 0:
			x := &found[near]
			x.Culprit, x.Evidence, x.Cures = f.Subject, append(x.Evidence, e), append([]Cure{cure}, x.Cures...)
		case f.Value >= manyZombies:
			x := Finding{Severity: Notice, Title: "a process does not wait for its children, which stay as zombies", Evidence: []Evidence{e}, Culprit: f.Subject, Cures: []Cure{cure}}
			if used, ok := s.Group(fact.GroupPids, group); ok && contained {
				x.Evidence = append(x.Evidence, Evidence{"processes of the container, of its limit", percent(used), "under 90 %"})
			}
			found = append(found, x)
		}
	}
	return found
}
