// Package syscalls names the numbers of system calls.
package syscalls

import "strconv"

//go:generate go run generate.go

// Name is the name of a system call of this machine's ABI, or "syscall 999" for an
// unknown number.
func Name(number int) string {
	if number >= 0 && number < len(names) && names[number] != "" {
		return names[number]
	}
	return "syscall " + strconv.Itoa(number)
}
