package holder

import (
	"debug/elf"
	"fmt"

	"holdfast/internal/platform/linux/tinyelf"
)

// Socket is the path, in the holder's mount namespace, of the socket to which Program
// connects. Dir is its directory, to be mounted from the host.
const (
	Dir    = "/holdfast"
	Socket = Dir + "/socket"
)

// Program is the program of a holder for linux on arch, as GOARCH names it. An unknown
// arch is an error. It connects to Socket, and exits unless root listens there. It then
// enters each network namespace whose descriptor arrives (SCM_RIGHTS, unix(7)), answers
// with the result of setns(2), and exits at the end of the connection.
func Program(arch string) ([]byte, error) {
	// The address of connect follows the code.
	address := append(append([]byte{1, 0}, Socket...), 0) // struct sockaddr_un: AF_UNIX
	switch arch {
	case "amd64":
		return tinyelf.Program(uint16(elf.EM_X86_64), append(amd64(), address...)), nil
	case "arm64":
		return tinyelf.Program(uint16(elf.EM_AARCH64), append(arm64(), address...)), nil
	}
	return nil, fmt.Errorf("make the program of a holder: the architecture %s is not supported", arch)
}

// Calls are the names of the system calls of Program.
func Calls() []string {
	return []string{"socket", "connect", "getsockopt", "recvmsg", "setns", "close", "sendto", "exit_group"}
}
