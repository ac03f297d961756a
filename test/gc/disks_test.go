package gc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/gc"
	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// disk creates a file system for the test.
func disk(t *testing.T, o lab.DiskOptions) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a disk needs root and a loop device")
	}
	d, err := lab.NewDisk(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
	})
	return d.Dir
}

// fillUp fills a file system, including the blocks reserved for root.
func fillUp(t *testing.T, dir string) {
	t.Helper()
	for _, block := range []int{1 << 20, 4096, 1} {
		f, err := os.CreateTemp(dir, "ballast-")
		if errors.Is(err, unix.ENOSPC) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = f.Write(make([]byte, block))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// The data of the engine and of the collector are on a full disk from the first cycle on. All
// unused objects are removed, and what failed is reported.
func TestAFullDisk(t *testing.T) {
	dir := disk(t, lab.DiskOptions{FS: "ext4", Size: 512 << 20})
	h := newHostWith(t, lab.Options{Dir: dir})
	h.data = filepath.Join(dir, "holdfast")
	h.image("kept:1", 10)
	kept := h.create("kept:1", "")
	h.network("leaked")
	ended := h.create("kept:1", "")
	h.start(ended)
	if err := h.engine.Kill(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		h.image(fmt.Sprintf("x:%d", i), 500)
	}
	collect := func(deleted int, rules ...gc.Rule) gc.Cycle {
		t.Helper()
		fillUp(t, dir)
		c := everything()
		c.Rules = rules
		cy, err := h.collector(c, nil).Collect(t.Context(), gc.ByRequest, nil)
		if err != nil || cy.Error != "" || len(cy.Skipped) > 0 || len(cy.Deleted) != deleted {
			t.Errorf("%+v, %v", cy, err)
		}
		said := strings.Join(cy.Notices, "\n")
		if !strings.Contains(said, "files are not linked away before a removal: create the trash directory") || !strings.Contains(said, "no space left") {
			t.Errorf("it said %q", said)
		}
		return cy
	}
	// The engine cannot even record the removal of a name.
	collect(1, gc.Rule{Kinds: []gc.Kind{gc.Images}, Match: []string{"x:0"}})
	cy := collect(5, gc.Rule{Kinds: []gc.Kind{gc.Stopped}}, gc.Rule{Kinds: []gc.Kind{gc.Networks}}, gc.Rule{Kinds: []gc.Kind{gc.Images}})
	h.expect("kept:1")
	h.start(kept)
	h.readable(kept)
	// After a removal there is space for links.
	linked := 0
	for _, o := range cy.Deleted {
		linked += o.Linked
	}
	if linked < 1000 {
		t.Errorf("%d files were linked away: %+v", linked, cy.Deleted)
	}
	if cycles, err := gc.NewStore(h.data, slog.Default()).Cycles(0); err != nil || len(cycles) == 0 || len(cycles[0].Deleted) != 5 || !cycles[0].Ended {
		t.Errorf("%+v, %v", cycles, err)
	}
}

// Only the collector's data are on a full disk. The history is complete nevertheless, the error
// is logged once, and all records are written when there is space.
func TestHistoryOnAFullDisk(t *testing.T) {
	h := newHost(t)
	dir := disk(t, lab.DiskOptions{FS: "ext4", Size: 16 << 20})
	h.data = filepath.Join(dir, "holdfast")
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(io.MultiWriter(&said, h.Output()), nil))
	store := gc.NewStore(h.data, log)
	policy := everything()
	col := gc.New(policy, gc.Deps{Engine: h.engine, Store: store, LockDir: t.TempDir(), Log: log})
	fillUp(t, dir)
	const cycles = 3
	for i := range cycles {
		h.image(fmt.Sprintf("x:%d", i), 200)
		cy, err := col.Collect(t.Context(), gc.ByRequest, nil)
		if err != nil || len(cy.Deleted) == 0 || !strings.Contains(strings.Join(cy.Notices, "\n"), "not in the history yet") {
			t.Errorf("%+v, %v", cy, err)
		}
	}
	h.expect()
	if list, err := col.History(0); err != nil || len(list) != cycles || !list[0].Ended || !list[0].Begun.After(list[1].Begun) {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := gc.NewStore(h.data, log).Cycles(0); err != nil || len(list) != 0 {
		t.Errorf("written: %+v, %v", list, err)
	}
	if n := strings.Count(said.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d errors were logged", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- col.Run(ctx) }()
	ballast, err := filepath.Glob(filepath.Join(dir, "ballast-*"))
	if err != nil || len(ballast) == 0 {
		t.Fatal(ballast, err)
	}
	for _, path := range ballast {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	poll.Until(h, "the history is written", func() bool {
		list, err := gc.NewStore(h.data, log).Cycles(0)
		return err == nil && len(list) == cycles
	})
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

// Collections on different file systems and storage drivers link files away, or report why
// not.
func TestFileSystems(t *testing.T) {
	const size = 1 << 30
	for name, x := range map[string]struct {
		disk   lab.DiskOptions
		driver string
		why    string // reason why files are not linked away; "": they are
	}{
		"overlay2 on ext4":       {lab.DiskOptions{FS: "ext4"}, "overlay2", ""},
		"overlay2 on xfs":        {lab.DiskOptions{FS: "xfs"}, "overlay2", ""},
		"overlay2 on btrfs":      {lab.DiskOptions{FS: "btrfs"}, "overlay2", ""},
		"btrfs":                  {lab.DiskOptions{FS: "btrfs"}, "btrfs", "the storage is btrfs, not overlay2"},
		"vfs on ext4":            {lab.DiskOptions{FS: "ext4"}, "vfs", "the storage is vfs, not overlay2"},
		"fuse-overlayfs on ext4": {lab.DiskOptions{FS: "ext4"}, "fuse-overlayfs", "the storage is fuse-overlayfs, not overlay2"},
	} {
		t.Run(name, func(t *testing.T) {
			if !labtest.Long() && (x.disk.FS == "btrfs" || x.driver == "fuse-overlayfs") {
				t.Skip("long: only the storage of most hosts, and one without overlay2, otherwise")
			}
			x.disk.Size = size
			h := newHostWith(t, lab.Options{Dir: disk(t, x.disk), Args: []string{"--storage-driver=" + x.driver}})
			h.image("kept:1", 10)
			c := h.create("kept:1", "")
			h.image("x:1", 300)
			h.layer("x:1", "x:2")
			cy := h.collect(everything())
			h.expect("kept:1")
			h.start(c)
			h.readable(c)
			linked := 0
			for _, o := range cy.Deleted {
				linked += o.Linked
			}
			said := strings.Join(cy.Notices, "\n")
			if len(cy.Skipped) > 0 || (linked >= 300) != (x.why == "") || !strings.Contains(said, x.why) || x.why == "" && said != "" {
				t.Errorf("%d files were linked away, it said %q: %+v", linked, said, cy)
			}
			s, err := h.collector(everything(), nil).Status(t.Context())
			if err != nil || s.Links != (x.why == "") || !strings.Contains(s.NoLinks, x.why) {
				t.Errorf("%+v, %v", s, err)
			}
			if len(h.trash()) > 0 {
				t.Errorf("left %v", h.trash())
			}
		})
	}
}

// fsxattr is struct fsxattr of linux/fs.h.
type fsxattr struct {
	flags, extentSize, extents, project, cowExtentSize uint32
	_                                                  [8]byte
}

// Requests and a flag of linux/fs.h.
const (
	fsGetXattr  = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetXattr  = 0x401c5820 // FS_IOC_FSSETXATTR
	projInherit = 0x200      // FS_XFLAG_PROJINHERIT
)

// setProject assigns a file or directory, and files created in it later, to a project of xfs.
// Limits need a kernel with CONFIG_XFS_QUOTA; the rule about links does not.
func setProject(t *testing.T, path string, id uint32) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var x fsxattr
	call := func(request uintptr) {
		t.Helper()
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(&x))); errno != 0 {
			t.Fatalf("%s: %v", path, errno)
		}
	}
	call(fsGetXattr)
	x.project = id
	if info, err := f.Stat(); err == nil && info.IsDir() {
		x.flags |= projInherit
	}
	call(fsSetXattr)
}

// A file system does not link across projects into a directory with PROJINHERIT.
func TestProjectQuotas(t *testing.T) {
	for name, x := range map[string]struct {
		project func(t *testing.T, root string)
		links   bool
	}{
		// As the engine does for storage-opt size.
		"each layer its own": {func(t *testing.T, root string) {
			trees, err := filepath.Glob(filepath.Join(root, "overlay2", "*", "diff"))
			if err != nil || len(trees) < 2 {
				t.Fatal(trees, err)
			}
			for i, tree := range trees {
				if err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
					if err == nil && (d.IsDir() || d.Type().IsRegular()) {
						setProject(t, path, uint32(100+i))
					}
					return err
				}); err != nil {
					t.Fatal(err)
				}
			}
		}, true},
		"the data root, since the layers": {func(t *testing.T, root string) { setProject(t, root, 7) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostWith(t, lab.Options{Dir: disk(t, lab.DiskOptions{FS: "xfs", Size: 1 << 30})})
			h.image("kept:1", 10)
			c := h.create("kept:1", "")
			h.image("x:1", 300)
			x.project(t, h.lab.DataRoot())
			cy := h.collect(everything())
			h.expect("kept:1")
			h.start(c)
			h.readable(c)
			linked := 0
			for _, o := range cy.Deleted {
				linked += o.Linked
			}
			said := strings.Join(cy.Notices, "\n")
			if len(cy.Skipped) > 0 || (linked >= 300) != x.links || x.links != (said == "") || !x.links && !strings.Contains(said, "not all files of image x:1 were linked away") {
				t.Errorf("%d files were linked away, it said %q: %+v", linked, said, cy)
			}
			if len(h.trash()) > 0 {
				t.Errorf("left %v", h.trash())
			}
		})
	}
}
