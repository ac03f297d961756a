// Package syscalls names the numbers of system calls.
package syscalls

import "strconv"

//go:generate go run generate.go

// Name is what a system call of this machine's own ABI is called, "syscall 999" for
// one that is not known here.
func Name(number int) string {
	if number >= 0 && number < len(names) && names[number] != "" {
		return names[number]
	}
	return "syscall " + strconv.Itoa(number)
}
