// Package pagecache reports which pages of a file are in memory.
package pagecache

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// window is the number of bytes of a file that are mapped at a time.
const window = 64 << 20

// Resident is the number of bytes of a file in memory, in whole pages.
func Resident(f *os.File) (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	n := int64(0)
	for at := int64(0); at < fi.Size(); at += window {
		b, err := unix.Mmap(int(f.Fd()), at, int(min(window, fi.Size()-at)), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return 0, fmt.Errorf("mmap %s: %w", f.Name(), err)
		}
		pages, err := Pages(b)
		_ = unix.Munmap(b) // it was mapped
		if err != nil {
			return 0, fmt.Errorf("mincore %s: %w", f.Name(), err)
		}
		for _, in := range pages {
			if in {
				n += int64(os.Getpagesize())
			}
		}
	}
	return n, nil
}

// Pages reports for each page of a mapping whether it is in memory (mincore(2)).
func Pages(mapping []byte) ([]bool, error) {
	size := os.Getpagesize()
	bits := make([]byte, (len(mapping)+size-1)/size)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mapping[0])), uintptr(len(mapping)), uintptr(unsafe.Pointer(&bits[0])))
	if errno != 0 {
		return nil, errno
	}
	in := make([]bool, len(bits))
	for i, b := range bits {
		in[i] = b&1 != 0
	}
	return in, nil
}

// Address is the first address of a mapping.
func Address(mapping []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&mapping[0]))) }
