package pki

import (
	"errors"
	"os"
)

// create writes a file that does not exist yet, with the mode perm whatever the
// umask is, and syncs it. After an error the path has no file, or the earlier one.
func create(path string, text []byte, perm os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(perm), f.Sync(), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}
