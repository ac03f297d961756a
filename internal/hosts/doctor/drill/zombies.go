package drill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	zombiesName = "zombies"
	pinnedName  = "pinned"
)

// zombies creates dying memory cgroups: they are removed while a page of a file is
// charged to them.
func zombies() Drill {
	return Drill{
		Name: zombiesName, Short: "memory cgroups that are removed and cannot be released", Rule: "dying-cgroups",
		Size: 2500, MaxSize: 100_000, Unit: "control groups",
		parts: []part{{name: "churner", work: func(ctx context.Context, t Task, ready func()) error {
			f, err := makeZombies(ctx, t)
			if err != nil {
				return err
			}
			defer f.Close()
			ready()
			<-ctx.Done()
			return nil
		}}},
	}
}

// pinned is zombies with locked pages.
func pinned() Drill {
	return Drill{
		Name: pinnedName, Short: "the same, held by a process that has locked their pages", Rule: "pinned-cgroups",
		Size: 600, MaxSize: 100_000, Unit: "control groups",
		parts: []part{{name: "holder", work: func(ctx context.Context, t Task, ready func()) error {
			f, err := makeZombies(ctx, t)
			if err != nil {
				return err
			}
			defer f.Close()
			b, err := unix.Mmap(int(f.Fd()), 0, t.Size*os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				return fmt.Errorf("mmap: %w", err)
			}
			defer func() { _ = unix.Munmap(b) }()
			if err := unix.Mlock(b); err != nil {
				return fmt.Errorf("mlock: %w", err)
			}
			ready()
			<-ctx.Done()
			return nil
		}}},
	}
}

// makeZombies enters t.Size groups below t.Tree in turn, charges a page of one file to
// each, and removes the group after leaving it. When the file is removed, the groups are
// released.
func makeZombies(ctx context.Context, t Task) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(t.Dir, "pages"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	page := make([]byte, os.Getpagesize())
	before := ""
	for i := 0; i < t.Size && ctx.Err() == nil; i++ {
		dir := filepath.Join(t.Tree, strconv.Itoa(i))
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			err = join(dir)
		}
		if err == nil {
			_, err = f.WriteAt(page, int64(i)*int64(len(page)))
		}
		if err == nil && before != "" {
			err = unix.Rmdir(before)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("create a control group that cannot be released: %w", err), f.Close())
		}
		before = dir
	}
	// The process moves to a living group, so that the last dying group can be released,
	// too.
	last := filepath.Join(t.Tree, "living")
	err = errors.Join(os.Mkdir(last, 0o755), join(last))
	if before != "" {
		err = errors.Join(err, unix.Rmdir(before))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
