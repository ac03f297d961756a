package cure

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore says for each page of a mapping whether it is in memory: bit 0 of its
// byte, mincore(2).
func mincore(b, pages []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		return errno
	}
	return nil
}

// addressOf is where a mapping begins.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }
