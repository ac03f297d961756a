package filetree

import (
	"bytes"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// user is the namespace of extended attributes that every user may set on own files
// (xattr(7)).
const user = "user."

// maxList bounds the names of all namespaces in bytes. A file with more is taken for one
// without attributes.
const maxList = 8 << 10

// Extended returns the extended attributes of the namespace user that a regular file or a
// directory has, without that prefix. f may be an O_PATH descriptor. It returns nil if they
// take more than most bytes, with the prefix, or cannot be read.
func Extended(f *os.File, most int) map[string]string {
	names := userNames(f)
	if len(names) == 0 {
		return nil
	}
	all, size, buf := map[string]string{}, 0, make([]byte, most)
	for _, name := range names {
		n, err := unix.Getxattr(self(f), name, buf)
		if err == unix.ENODATA {
			continue // it was removed meanwhile
		}
		if size += len(name) + n; err != nil || size > most {
			return nil
		}
		all[strings.TrimPrefix(name, user)] = string(buf[:n])
	}
	return all
}

// userNames returns the names of the attributes with their prefix. Many file systems have
// none.
func userNames(f *os.File) (names []string) {
	// Most files have no attribute, and then no buffer is needed.
	if n, err := unix.Listxattr(self(f), nil); err != nil || n == 0 || n > maxList {
		return nil
	}
	buf := make([]byte, maxList)
	n, err := unix.Listxattr(self(f), buf)
	if err != nil {
		return nil
	}
	for name := range bytes.SplitSeq(buf[:n], []byte{0}) {
		if bytes.HasPrefix(name, []byte(user)) {
			names = append(names, string(name))
		}
	}
	return names
}

// setExtended gives an open file attributes.
func setExtended(f *os.File, all map[string]string) error {
	for name, value := range all {
		if err := unix.Fsetxattr(int(f.Fd()), user+name, []byte(value), 0); err != nil {
			return &os.PathError{Op: "setxattr", Path: f.Name(), Err: err}
		}
	}
	return nil
}

// replaceExtended gives an open file attributes, and removes the others.
func replaceExtended(f *os.File, all map[string]string) error {
	for _, name := range userNames(f) {
		if err := unix.Fremovexattr(int(f.Fd()), name); err != nil && err != unix.ENODATA {
			return &os.PathError{Op: "removexattr", Path: f.Name(), Err: err}
		}
	}
	return setExtended(f, all)
}
