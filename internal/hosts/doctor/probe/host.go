package probe

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"holdfast/internal/hosts/doctor/fact"
)

// hostProbe reads the kernel's version and the use of the host's limits.
func hostProbe() Probe {
	return Probe{
		Name: "host", Sees: "kernel version, uptime, limits of the host, mounts", Once: true, Rare: true,
		Gives: []string{fact.KernelRelease, fact.HostUptime, fact.HostFiles, fact.HostMaxFiles, fact.HostThreads, fact.HostMaxPids, fact.HostMaxTasks, fact.HostMounts, fact.HostLoad},
		Open:  moment(readHost),
	}
}

func readHost(_ context.Context, h Host) ([]fact.Fact, error) {
	var fs []fact.Fact
	var errs []error
	figure := func(name, file string, field int, unit fact.Unit) {
		text, err := read(string(h.Proc) + file)
		fields := strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || r == '/' })
		if err == nil && field >= len(fields) {
			err = fmt.Errorf("%s: unexpected format: %q", file, text)
		}
		v := 0.0
		if err == nil {
			v, err = strconv.ParseFloat(fields[field], 64)
		}
		if err != nil {
			errs = append(errs, err)
			return
		}
		fs = append(fs, host(name, v, unit))
	}
	figure(fact.HostUptime, "/uptime", 0, fact.Seconds)
	figure(fact.HostFiles, "/sys/fs/file-nr", 0, fact.Count)
	figure(fact.HostMaxFiles, "/sys/fs/file-nr", 2, fact.Count)
	figure(fact.HostLoad, "/loadavg", 0, fact.Count)
	figure(fact.HostThreads, "/loadavg", 4, fact.Count) // 0.20 0.18 0.12 1/80 11206, proc_loadavg(5): running/all threads

	release, err := read(string(h.Proc) + "/sys/kernel/osrelease")
	if err == nil {
		fs = append(fs, fact.Fact{Name: fact.KernelRelease, Text: strings.TrimSpace(release), Unit: fact.Word})
	}
	errs = append(errs, err)
	for _, limit := range [][2]string{{fact.HostMaxPids, "pid_max"}, {fact.HostMaxTasks, "threads-max"}} {
		most, err := number(string(h.Proc) + "/sys/kernel/" + limit[1])
		if err == nil {
			fs = append(fs, host(limit[0], most, fact.Count))
		}
		errs = append(errs, err)
	}
	// Each process may have its own mounts; those of init are the host's.
	mounts, err := read(string(h.Proc) + "/1/mountinfo")
	if err == nil {
		fs = append(fs, host(fact.HostMounts, float64(strings.Count(mounts, "\n")), fact.Count))
	}
	return fs, errors.Join(append(errs, err)...)
}
