// The program burner uses a CPU as its argument says: in a function of its own, in a
// system call, or in code generated at run time.
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
	return fmt.Errorf("unknown argument %q", how)
}

var sink uint64

//go:noinline
func burnHere() {
	for i := range uint64(1 << 20) {
		sink += i * sink
	}
}

// fadvise makes the calls that a logger makes after each line.
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
