package cure

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/probe"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/kfile"
	"holdfast/internal/platform/linux/pagecache"
	"holdfast/internal/platform/linux/perf/symbol"
)

// Bounds of the search for files that hold dying groups.
const (
	maxFiles = 50_000
	// window is the size of the part of a file that is mapped at a time.
	window = 64 << 20
)

// fileID identifies a file independently of its paths.
type fileID struct{ dev, ino uint64 }

// candidate is a file that may have pages of dying groups.
type candidate struct {
	open string // path that opens the file even if it is deleted or in another mount namespace
	name string // name to display
	id   fileID
}

// span is a part of a file, in bytes.
type span struct{ from, size int64 }

// pinning is a file with pages of dying groups.
type pinning struct {
	candidate
	spans []span
	bytes int64
}

// scanner determines which groups the pages of files are charged to.
type scanner struct {
	self, owners *os.File // pagemap of this process, kpagecgroup
	inhabited    map[uint64]bool
}

func newScanner(h probe.Host, m cgroup.Mount) (*scanner, error) {
	owners, err := os.Open(string(h.Proc) + "/kpagecgroup")
	if err != nil {
		return nil, err
	}
	self, err := os.Open(string(h.Proc) + "/self/pagemap")
	if err != nil {
		return nil, errors.Join(err, owners.Close())
	}
	s := &scanner{self: self, owners: owners, inhabited: make(map[uint64]bool)}
	_ = m.Group("/").Walk(s.inhabit) // a removed group has no pages
	return s, nil
}

func (s *scanner) close() {
	s.self.Close()
	s.owners.Close()
}

// inhabit records whether a group has processes of its own. The kernel reports a dying
// group's page under the nearest living ancestor, and a group without processes has no
// other pages (Documentation/admin-guide/mm/pagemap.rst). It is for Walk.
func (s *scanner) inhabit(g cgroup.Group, depth int) error {
	if depth > maxDepth || len(s.inhabited) > maxGroups {
		return fs.SkipDir
	}
	b, err := kfile.Read(g.Dir()+"/cgroup.procs", 32<<20)
	var st unix.Stat_t
	if err == nil && len(b) > 0 && unix.Stat(g.Dir(), &st) == nil {
		s.inhabited[st.Ino] = true
	}
	return nil
}

// scan finds the pages of dying groups in one file. The file may be truncated meanwhile.
func (s *scanner) scan(ctx context.Context, c candidate) (p pinning, err error) {
	p.candidate = c
	f, err := os.OpenFile(c.open, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return p, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return p, err
	}
	for at := int64(0); at < fi.Size() && ctx.Err() == nil; at += window {
		if err := s.scanWindow(f, at, min(window, fi.Size()-at), &p); err != nil {
			return p, err
		}
	}
	return p, ctx.Err()
}

// scanWindow scans one window of a file.
func (s *scanner) scanWindow(f *os.File, at, length int64, p *pinning) error {
	b, err := unix.Mmap(int(f.Fd()), at, int(length), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap %s: %w", p.name, err)
	}
	defer func() { _ = unix.Munmap(b) }()
	_ = unix.Madvise(b, unix.MADV_RANDOM) // without read-ahead
	resident, err := pagecache.Pages(b)
	if err != nil {
		return fmt.Errorf("mincore %s: %w", p.name, err)
	}
	if _, err := touch(b, resident); err != nil {
		return err
	}
	base := pagecache.Address(b) / uint64(pageSize())
	for i, in := range resident {
		if !in {
			continue
		}
		dead, err := s.isDead(base + uint64(i))
		if err != nil {
			return err
		}
		if !dead {
			continue
		}
		from := at + int64(i)*pageSize()
		if n := len(p.spans); n > 0 && p.spans[n-1].from+p.spans[n-1].size == from {
			p.spans[n-1].size += pageSize()
		} else {
			p.spans = append(p.spans, span{from, pageSize()})
		}
		p.bytes += pageSize()
	}
	return nil
}

// touch maps the pages that are in the cache, so that their frames can be looked up. The
// sum only prevents the compiler from removing the reads.
func touch(b []byte, resident []bool) (sum byte, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			err = errors.New("the file was truncated meanwhile")
		}
	}()
	for i, in := range resident {
		if in {
			sum += b[i*os.Getpagesize()]
		}
	}
	return sum, nil
}

// isDead reports whether the page at an address of this process (in pages) is charged to
// a group without processes.
func (s *scanner) isDead(page uint64) (bool, error) {
	const present, frame = 1 << 63, 1<<55 - 1
	entry, err := word(s.self, page)
	if err != nil {
		return false, fmt.Errorf("pagemap: %w", err)
	}
	if entry&present == 0 || entry&frame == 0 {
		return false, nil
	}
	owner, err := word(s.owners, entry&frame)
	if err != nil {
		return false, fmt.Errorf("kpagecgroup: %w", err)
	}
	return owner > 1 && !s.inhabited[owner], nil // 0 is uncharged, 1 the root group
}

// word reads the n-th 64 bits of a file.
func word(f *os.File, n uint64) (uint64, error) {
	var b [8]byte
	if _, err := f.ReadAt(b[:], int64(n*8)); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(b[:]), nil
}

// openFiles returns the regular files that processes have open or mapped, except for
// running programs and libraries.
func openFiles(ctx context.Context, h probe.Host) (map[fileID]candidate, error) {
	pids, err := h.Proc.Pids()
	if err != nil {
		return nil, err
	}
	found := make(map[fileID]candidate)
	programs := make(map[fileID]bool)
	defer func() {
		for id := range programs {
			delete(found, id)
		}
	}()
	for _, pid := range pids {
		programsOf(h, pid, programs)
		for _, dir := range []string{"fd", "map_files"} {
			base := filepath.Join(string(h.Proc), strconv.Itoa(pid), dir)
			entries, err := os.ReadDir(base)
			if err != nil {
				continue // it has ended, or access is denied
			}
			for _, e := range entries {
				if len(found) >= maxFiles || ctx.Err() != nil {
					return found, ctx.Err()
				}
				link := filepath.Join(base, e.Name())
				if id, ok := regular(link); ok && found[id].open == "" {
					name, _ := os.Readlink(link)
					found[id] = candidate{open: link, name: name, id: id}
				}
			}
		}
	}
	return found, nil
}

// programsOf records the programs and libraries that a process runs. Their pages are
// charged to the group that ran them first and hold one or two groups, and they are in
// use.
func programsOf(h probe.Host, pid int, programs map[fileID]bool) {
	code, _ := symbol.Mappings(string(h.Proc), pid) // none if the process has ended
	for _, m := range code {
		if id, ok := regular(fmt.Sprintf("%s/%d/map_files/%x-%x", h.Proc, pid, m.Begin, m.End)); ok {
			programs[id] = true
		}
	}
}

// filesBelow returns the regular files at or below a path, without following links.
func filesBelow(ctx context.Context, root string, found map[fileID]candidate) error {
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && p == root:
			return err
		case err != nil:
			return nil
		case len(found) >= maxFiles:
			return fmt.Errorf("there are more than %d files", maxFiles)
		case !d.Type().IsRegular():
			return nil
		}
		if id, ok := regular(p); ok {
			found[id] = candidate{open: p, name: p, id: id}
		}
		return nil
	})
}

func regular(p string) (fileID, bool) {
	var st unix.Stat_t
	if unix.Stat(p, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size == 0 {
		return fileID{}, false
	}
	return fileID{st.Dev, st.Ino}, true
}
