// Package atomicfile replaces files such that a reader, and a host that loses
// power, find the old content or the new one, and never a part.
//
// google/renameio and containerd's pkg/atomicfile do not sync the directory after
// the rename, without which a power cut can undo it (fsync(2)).
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// File is a new content of a path, which replaces the old one with Commit. The
// caller writes to it and then calls Commit or Abort.
type File struct {
	*os.File
	path string
}

// Create makes an empty file in the directory of path, readable by its owner
// only. The file at path stays as it is.
func Create(path string) (*File, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return nil, err
	}
	return &File{f, path}, nil
}

// Commit syncs the file, gives it the mode perm whatever the umask is, and renames
// it to its path. When Commit returns nil the change survives a power cut. With an
// error the old file is still there, unless only the sync of the directory failed.
func (f *File) Commit(perm fs.FileMode) error {
	if err := errors.Join(f.Chmod(perm), f.Sync()); err != nil {
		return errors.Join(err, f.Abort())
	}
	if err := f.rename(); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(f.path))
}

// Abort removes the file; the file at its path stays as it is.
func (f *File) Abort() error { return errors.Join(f.Close(), os.Remove(f.Name())) }

func (f *File) rename() error {
	err := f.Close()
	if err == nil {
		err = os.Rename(f.Name(), f.path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// Write replaces the file at path with one that has the content text and the mode
// perm. When it returns nil the change survives a power cut.
func Write(path string, text []byte, perm fs.FileMode) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	if _, err := f.Write(text); err != nil {
		return errors.Join(err, f.Abort())
	}
	return f.Commit(perm)
}

// WriteNoSync is Write without the two syncs, for files that matter only until the
// host goes down, or that are written where a sync would take too long.
func WriteNoSync(path string, text []byte, perm fs.FileMode) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	if _, err := f.Write(text); err != nil {
		return errors.Join(err, f.Abort())
	}
	if err := f.Chmod(perm); err != nil {
		return errors.Join(err, f.Abort())
	}
	return f.rename()
}

// SyncDir writes the names in a directory to the disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
