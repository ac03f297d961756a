package probe

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// hostProbe reads the kernel's version and the use of the host's limits.
func hostProbe() Probe {
	return Probe{
		Name: "host", Sees: "kernel version, uptime, limits of the host, mounts", Once: true,
		Gives: []string{fact.KernelRelease, fact.HostUptime, fact.HostFiles, fact.HostMaxFiles, fact.HostThreads, fact.HostMaxPids, fact.HostMounts},
		Start: func(_ context.Context, h Host) (Finish, error) {
			return func(context.Context, time.Duration) ([]fact.Fact, error) { return readHost(h) }, nil
		},
	}
}

func readHost(h Host) ([]fact.Fact, error) {
	var fs []fact.Fact
	var errs []error
	word := func(file string, use func(string) error) {
		text, err := read(string(h.Proc) + file)
		if err == nil {
			err = use(strings.TrimSpace(text))
		}
		errs = append(errs, err)
	}
	number := func(file, name string, unit fact.Unit, field int) {
		word(file, func(text string) error {
			f := strings.Fields(text)
			if field >= len(f) {
				return fmt.Errorf("%s: %q", file, text)
			}
			v, err := strconv.ParseFloat(f[field], 64)
			fs = append(fs, host(name, v, unit))
			return err
		})
	}
	word("/sys/kernel/osrelease", func(text string) error {
		fs = append(fs, fact.Fact{Name: fact.KernelRelease, Text: text, Unit: fact.Word})
		return nil
	})
	number("/uptime", fact.HostUptime, fact.Seconds, 0)
	number("/sys/fs/file-nr", fact.HostFiles, fact.Count, 0)
	number("/sys/fs/file-nr", fact.HostMaxFiles, fact.Count, 2)
	word("/loadavg", func(text string) error {
		// 0.20 0.18 0.12 1/80 11206, proc_loadavg(5): running/all threads
		f := strings.Fields(text)
		if len(f) < 4 {
			return fmt.Errorf("loadavg: %q", text)
		}
		_, all, _ := strings.Cut(f[3], "/")
		v, err := strconv.ParseFloat(all, 64)
		fs = append(fs, host(fact.HostThreads, v, fact.Count))
		return err
	})
	word("/sys/kernel/pid_max", func(text string) error {
		pids, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		if t, err := read(string(h.Proc) + "/sys/kernel/threads-max"); err == nil {
			if threads, err := strconv.ParseFloat(strings.TrimSpace(t), 64); err == nil {
				pids = min(pids, threads)
			}
		}
		fs = append(fs, host(fact.HostMaxPids, pids, fact.Count))
		return nil
	})
	// Each process may have its own mounts; those of init are the host's.
	word("/1/mountinfo", func(text string) error {
		fs = append(fs, host(fact.HostMounts, float64(strings.Count(text+"\n", "\n")), fact.Count))
		return nil
	})
	return fs, errors.Join(errs...)
}
