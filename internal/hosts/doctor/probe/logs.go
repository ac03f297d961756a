package probe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// logsProbe measures how fast the engine's logs of containers grow. It finds them as files that
// the engine has open, with the container's id in their path, as those of Docker and Podman have.
func logsProbe() Probe {
	return Probe{
		Name: "logs", Sees: "containers that print very much",
		Gives: []string{fact.LogsSeen, fact.LogGrowth},
		Open:  counted(readLogs, logFacts),
	}
}

// loggers are the commands of processes that write logs of containers.
func loggers() []string { return []string{"dockerd", "containerd", "conmon"} }

// processesOf returns the directories, below the procfs, of the processes with one of the commands.
func processesOf(h Host, commands []string) (dirs []string, err error) {
	pids, err := h.Proc.Pids()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		dir := string(h.Proc) + "/" + strconv.Itoa(pid)
		if name, err := read(dir + "/comm"); err == nil && slices.Contains(commands, strings.TrimSpace(name)) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// readLogs returns the size of each container's log in bytes, by the container's id.
func readLogs(ctx context.Context, h Host) (map[string]float64, error) {
	dirs, err := processesOf(h, loggers())
	if err != nil {
		return nil, err
	}
	sizes := make(map[string]float64)
	for _, dir := range dirs {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		files, err := os.ReadDir(dir + "/fd")
		if errors.Is(err, os.ErrPermission) {
			return nil, err
		}
		for _, f := range files { // none if the process has ended
			file := filepath.Join(dir, "fd", f.Name())
			path, err := os.Readlink(file)
			if err != nil || filepath.Ext(path) != ".log" {
				continue
			}
			id := fact.ContainerID(path)
			if st, err := os.Stat(file); err == nil && id != "" && st.Mode().IsRegular() {
				sizes[id] += float64(st.Size())
			}
		}
	}
	return sizes, nil
}

func logFacts(h Host, before, after map[string]float64, over time.Duration) ([]fact.Fact, error) {
	rates := make(map[string]float64)
	for id, size := range after {
		grew := size - before[id]
		if grew < 0 { // it was rotated
			grew = size
		}
		rates[id] = grew / over.Seconds()
	}
	fs := []fact.Fact{host(fact.LogsSeen, float64(len(after)), fact.Count)}
	named := make(map[string]bool)
	for _, m := range h.Groups {
		if len(named) == len(rates) {
			break // a container is in several hierarchies
		}
		_ = walkContainers(m, func(p, _ string) { // without a list no container is named
			id := fact.ContainerID(p)
			if v, ok := rates[id]; ok && !named[id] {
				named[id] = true
				fs = append(fs, fact.Fact{Name: fact.LogGrowth, Value: v, Unit: fact.Bytes, Subject: fact.Subject{Cgroup: p}})
			}
		})
	}
	return fs, nil
}
