package pki

import (
	"errors"
	"os"
	"path/filepath"
)

// create writes a file that is not there yet. What fails leaves none.
func create(path string, text []byte, perm os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	return fill(f, text, perm)
}

// replace puts a file in a path's place at once.
func replace(path string, text []byte, perm os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	if err := fill(f, text, perm); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// fill writes text to the disk and closes f; what fails is removed. perm counts
// whatever the umask is.
func fill(f *os.File, text []byte, perm os.FileMode) error {
	_, err := f.Write(text)
	err = errors.Join(err, f.Chmod(perm), f.Sync(), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
