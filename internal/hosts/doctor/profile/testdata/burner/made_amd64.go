package main

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// made runs a loop that it writes to memory, and names it in a perf map, as runtimes with
// a JIT compiler do.
func made() error {
	code, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE|syscall.PROT_EXEC, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return err
	}
	copy(code, []byte{
		0xb9, 0x00, 0x00, 0x10, 0x00, // mov ecx, 1<<20
		0xff, 0xc9, // dec ecx
		0x75, 0xfc, // jnz to it
		0xc3, // ret
	})
	if err := os.MkdirAll("/tmp", 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf("%x %x shop.Cart.total\n", uintptr(unsafe.Pointer(&code[0])), 10)
	if err := os.WriteFile(fmt.Sprintf("/tmp/perf-%d.map", os.Getpid()), []byte(text), 0o644); err != nil {
		return err
	}
	entry := uintptr(unsafe.Pointer(&code[0]))
	closure := &entry
	run := *(*func())(unsafe.Pointer(&closure))
	for {
		run()
	}
}
