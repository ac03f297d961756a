package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A machine's data directory is a file system of its own. With Options.Runsc it has the
// images of suspended sessions, too.
const (
	dataSize       = 64 << 20 // bytes
	dataSizeImages = 1 << 30
)

func (m *node) dataDir() string { return filepath.Join(m.dir, "data") }

// mountData makes the machine's data directory, if it is not there.
func (m *node) mountData() error {
	if m.mounted {
		return nil
	}
	if err := os.MkdirAll(m.dataDir(), 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", m.dataDir(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=700,size=%d", m.dataSize)); err != nil {
		return fmt.Errorf("mount the data directory of %s: %w", m.id, err)
	}
	m.mounted = true
	return nil
}

// unmountData removes the machine's data, also if a process that ends has it open.
func (m *node) unmountData() error {
	if !m.mounted {
		return nil
	}
	m.mounted = false
	return unix.Unmount(m.dataDir(), unix.MNT_DETACH)
}

// fillDisk leaves no space on the machine's data directory for longer than the lease.
func (x *experiment) fillDisk(ctx context.Context, m *node) (err error) {
	path := filepath.Join(m.dataDir(), "filler")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(path), m.awaitReady(ctx)) }()
	begin, zeros := now(), make([]byte, 64<<10)
	for now()-begin < timing(x.o.TTL).TTL+longer { // again, because the agent may have freed some
		for {
			if _, err := f.Write(zeros); errors.Is(err, unix.ENOSPC) {
				break
			} else if err != nil {
				return err
			}
		}
		sleep(ctx, refill)
	}
	return nil
}
