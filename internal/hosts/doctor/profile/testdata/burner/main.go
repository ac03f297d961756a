// The program burner uses a CPU in the way that its argument says: in a function of
// its own, in a call of the kernel, or in code that it made itself.
package main

import (
	"fmt"
	"os"
	"syscall"
)

func main() {
	if err := burn(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func burn(how string) error {
	switch how {
	case "user":
		for {
			burnHere()
		}
	case "fadvise":
		return fadvise()
	case "made":
		return made()
	}
	return fmt.Errorf("there is no way %q to burn", how)
}

var sink uint64

//go:noinline
func burnHere() {
	for i := range uint64(1 << 20) {
		sink += i * sink
	}
}

// fadvise is what a logger does after each line.
func fadvise() error {
	f, err := os.Create("/burner.log")
	if err != nil {
		return err
	}
	const dontNeed = 4
	for {
		if _, err := f.WriteAt(make([]byte, 4096), 0); err != nil {
			return err
		}
		for range 100 {
			if _, _, e := syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 4096, dontNeed, 0, 0); e != 0 {
				return e
			}
		}
	}
}
