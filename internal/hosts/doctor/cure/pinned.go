package cure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sort"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/probe"
)

// shownFiles is the number of files that a plan names.
const shownFiles = 10

// Pinned drops, by posix_fadvise, only those pages of files that hold dying memory
// cgroups. It searches the files that processes have open or mapped, and those at or
// below the paths.
func Pinned(paths ...string) Cure {
	return Cure{Name: "pinned", prepare: func(ctx context.Context, e Env, o Options) (prepared, error) {
		if os.Geteuid() != 0 {
			return prepared{}, notRoot("reading which groups a file's pages are charged to")
		}
		found, err := findPinning(ctx, e.Host, paths)
		if err != nil {
			return prepared{}, err
		}
		a := prepared{target: "files"}
		if len(found) == 0 {
			a.plan.Gain, a.plan.Risk = "none", "none"
			a.notes = append(a.notes, "the searched files have no page of a dying group; --path adds others, such as a directory of logs")
			a.notes = append(a.notes, holders(ctx, e.Host)...)
			return a, nil
		}
		total := int64(0)
		for i, p := range found {
			total += p.bytes
			if i < shownFiles {
				a.plan.Does = append(a.plan.Does, fmt.Sprintf("drop %s of %s, after writing its dirty pages", size(p.bytes), p.name))
			}
		}
		if n := len(found) - shownFiles; n > 0 {
			a.plan.Does = append(a.plan.Does, fmt.Sprintf("drop pages of %d other files", n))
		}
		a.plan.Bytes = min(total, o.Bytes)
		a.plan.Gain = fmt.Sprintf("dying groups that only these %s hold are released", size(total))
		a.plan.Risk = "the next reads of these pages go to the disk; no other page is affected"
		a.measure = func(ctx context.Context) ([]Measure, error) { return measurePinning(ctx, e.Host, found) }
		a.do = func(ctx context.Context) (result, error) { return drop(ctx, e.Host, found, o.Bytes) }
		return a, nil
	}}
}

// findPinning searches for files with pages of dying groups, the file with most first.
func findPinning(ctx context.Context, h probe.Host, paths []string) ([]pinning, error) {
	candidates, err := openFiles(ctx, h)
	if err != nil {
		return nil, err
	}
	for _, p := range paths {
		if err := filesBelow(ctx, p, candidates); err != nil {
			return nil, err
		}
	}
	list := make([]candidate, 0, len(candidates))
	for _, c := range candidates {
		list = append(list, c)
	}
	return scanFiles(ctx, h, list)
}

func scanFiles(ctx context.Context, h probe.Host, list []candidate) ([]pinning, error) {
	m, ok := h.Groups.Memory()
	if !ok {
		return nil, errNoMemory
	}
	s, err := newScanner(h, m)
	if err != nil {
		return nil, err
	}
	defer s.close()
	var found []pinning
	for _, c := range list {
		p, err := s.scan(ctx, c)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil || p.bytes == 0: // it was removed, or cannot be mapped
			continue
		}
		found = append(found, p)
	}
	sort.Slice(found, func(i, j int) bool {
		a, b := &found[i], &found[j]
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.name, b.name)) < 0
	})
	return found, nil
}

func measurePinning(ctx context.Context, h probe.Host, before []pinning) ([]Measure, error) {
	now, err := scanFiles(ctx, h, candidatesOf(before))
	if err != nil {
		return nil, err
	}
	total := 0.0
	for _, p := range now {
		total += float64(p.bytes)
	}
	ms := []Measure{{"pages of dying groups in these files", "B", total}}
	if dying, ok := settledDying(ctx, h); ok {
		ms = append(ms, Measure{What: "dying memory cgroups on this host", Value: dying})
	}
	return ms, nil
}

func candidatesOf(ps []pinning) []candidate {
	cs := make([]candidate, len(ps))
	for i, p := range ps {
		cs[i] = p.candidate
	}
	return cs
}

// drop drops the pages.
func drop(ctx context.Context, h probe.Host, found []pinning, most int64) (result, error) {
	var r result
	for _, p := range found {
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		n, err := dropFile(ctx, p, most)
		most -= n
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.notes = append(r.notes, fmt.Sprintf("%s: %v", p.name, err))
		}
		if most < pageSize() {
			r.stopped = "its bound of bytes was reached"
			break
		}
	}
	left, err := scanFiles(ctx, h, candidatesOf(found))
	if err != nil {
		return r, err
	}
	for i, p := range left {
		if i < shownFiles && p.bytes >= pageSize() {
			r.notes = append(r.notes, fmt.Sprintf("%s of %s cannot be dropped: a process maps or writes them", size(p.bytes), p.name))
		}
	}
	if len(left) > 0 {
		r.notes = append(r.notes, holders(ctx, h)...)
	}
	return r, nil
}

// dropFile drops pages of one file, at most the given number of bytes, and returns the
// number of bytes it requested.
func dropFile(ctx context.Context, p pinning, most int64) (int64, error) {
	f, err := os.OpenFile(p.open, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	if (fileID{st.Dev, st.Ino}) != p.id {
		return 0, errors.New("the path is now a different file")
	}
	// Dirty pages are not dropped. A read-only file system has none.
	if err := unix.Fdatasync(int(f.Fd())); err != nil && !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.EINVAL) {
		return 0, fmt.Errorf("write dirty pages: %w", err)
	}
	done := int64(0)
	for _, s := range p.spans {
		n := min(s.size, most-done)
		if n < pageSize() || ctx.Err() != nil {
			break
		}
		if err := unix.Fadvise(int(f.Fd()), s.from, n, unix.FADV_DONTNEED); err != nil {
			return done, fmt.Errorf("posix_fadvise: %w", err)
		}
		done += n
	}
	return done, nil
}
