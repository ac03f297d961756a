package cure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/probe"
)

// shownFiles is how many files a plan names.
const shownFiles = 10

// Pinned drops, by posix_fadvise, just the pages of files that dead memory cgroups
// are held by. It looks at the files that processes have open or mapped, and at
// those at or below the paths.
func Pinned(paths ...string) Cure {
	return Cure{Name: "pinned", prepare: func(ctx context.Context, e Env, o Options) (act, error) {
		if os.Geteuid() != 0 {
			return act{}, notRoot("seeing whose pages are in a file")
		}
		found, err := findPinning(ctx, e.Host, paths)
		if err != nil {
			return act{}, err
		}
		a := act{target: "files"}
		if len(found) == 0 {
			a.plan.Gain, a.plan.Risk = "none", "none"
			a.notes = append(a.notes, "no page of a dead group is in the files that were looked at; --path names others, as a directory of logs")
			a.notes = append(a.notes, holders(ctx, e.Host)...)
			return a, nil
		}
		total := int64(0)
		for i, p := range found {
			total += p.bytes
			if i < shownFiles {
				a.plan.Does = append(a.plan.Does, fmt.Sprintf("drop %s of %s, after writing what is dirty", size(p.bytes), p.name))
			}
		}
		if n := len(found) - shownFiles; n > 0 {
			a.plan.Does = append(a.plan.Does, fmt.Sprintf("and of %d other files", n))
		}
		a.plan.Bytes = min(total, o.Bytes)
		a.plan.Gain = fmt.Sprintf("the dead groups that only these %s hold can go", size(total))
		a.plan.Risk = "who reads these pages next reads them from the disk; no other page is touched"
		a.measure = func(ctx context.Context) ([]Measure, error) { return measurePinning(ctx, e.Host, found) }
		a.do = func(ctx context.Context) (result, error) { return drop(ctx, e.Host, found, o.Bytes) }
		return a, nil
	}}
}

// findPinning looks for files with pages of dead groups, the one with most first.
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
		p, err := s.look(ctx, c)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil || p.bytes == 0: // it has gone, or cannot be mapped
			continue
		}
		found = append(found, p)
	}
	slices.SortFunc(found, func(a, b pinning) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.name, b.name)) })
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
	ms := []Measure{{"pages of dead groups in these files", "B", total}}
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
			r.stopped = "its bound of bytes was used up"
			break
		}
	}
	left, err := scanFiles(ctx, h, candidatesOf(found))
	if err != nil {
		return r, err
	}
	for i, p := range left {
		if i < shownFiles && p.bytes >= pageSize() {
			r.notes = append(r.notes, fmt.Sprintf("%s of %s cannot be dropped: somebody maps or writes it", size(p.bytes), p.name))
		}
	}
	if len(left) > 0 {
		r.notes = append(r.notes, holders(ctx, h)...)
	}
	return r, nil
}

// dropFile drops the pages of one file, at most so many bytes, and returns how many
// it asked for.
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
		return 0, errors.New("it is another file by now")
	}
	// Dirty pages stay. A file system that cannot be written has none.
	if err := unix.Fdatasync(int(f.Fd())); err != nil && !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.EINVAL) {
		return 0, fmt.Errorf("write what is dirty: %w", err)
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
