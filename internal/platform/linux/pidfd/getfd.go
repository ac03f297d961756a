package pidfd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenFile is an open file of a process.
type OpenFile struct {
	Pid, FD int
}

// FindSockets finds processes that have the sockets with these inodes open: first
// among the given ones, then in all of /proc. It returns one process for each socket.
// It reads the links of /proc/pid/fd (proc_pid_fd(5)), which takes some 10 ms on a
// host with hundreds of processes.
func FindSockets(pids []int, inodes ...uint32) (map[uint32]OpenFile, error) {
	found := SocketsOf(pids, inodes...)
	if len(found) == len(inodes) {
		return found, nil
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("find the process of a socket: %w", err)
	}
	wanted := names(inodes)
	// The youngest first: the socket is most often that of a new server.
	for i := len(all) - 1; i >= 0 && len(found) < len(inodes); i-- {
		if pid, err := strconv.Atoi(all[i].Name()); err == nil {
			look(pid, wanted, found)
		}
	}
	return found, nil
}

// Holders finds all processes that have the sockets with these inodes open, with one
// descriptor of each. It reads as much as FindSockets.
func Holders(inodes ...uint32) (map[uint32][]OpenFile, error) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("find the processes of a socket: %w", err)
	}
	holders, wanted := make(map[uint32][]OpenFile), names(inodes)
	for _, entry := range all {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			found := make(map[uint32]OpenFile)
			look(pid, wanted, found)
			for inode, f := range found {
				holders[inode] = append(holders[inode], f)
			}
		}
	}
	return holders, nil
}

// SocketsOf is FindSockets in the processes given only.
func SocketsOf(pids []int, inodes ...uint32) map[uint32]OpenFile {
	found, wanted := make(map[uint32]OpenFile, len(inodes)), names(inodes)
	for _, pid := range pids {
		look(pid, wanted, found)
	}
	return found
}

// names returns the link texts of the sockets.
func names(inodes []uint32) map[string]uint32 {
	m := make(map[string]uint32, len(inodes))
	for _, i := range inodes {
		m[fmt.Sprintf("socket:[%d]", i)] = i
	}
	return m
}

// look skips processes that have ended.
func look(pid int, wanted map[string]uint32, found map[uint32]OpenFile) {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd/"
	files, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, f := range files {
		to, err := os.Readlink(dir + f.Name())
		if err != nil || !strings.HasPrefix(to, "socket:") {
			continue
		}
		inode, ok := wanted[to]
		if !ok {
			continue
		}
		if fd, err := strconv.Atoi(f.Name()); err == nil {
			found[inode] = OpenFile{pid, fd}
		}
	}
}

// TakeSocket returns a descriptor for a socket that another process has open
// (pidfd_getfd(2), Linux 5.6), after it has checked the inode. The caller closes it.
// It is not an os.File, which may change the blocking mode that the other process
// shares. ErrGone if the socket is gone.
func TakeSocket(f OpenFile, inode uint32) (int, error) {
	pfd, err := unix.PidfdOpen(f.Pid, 0)
	if err == unix.ESRCH {
		return -1, fmt.Errorf("take a socket of process %d: %w", f.Pid, ErrGone)
	} else if err != nil {
		return -1, fmt.Errorf("take a socket of process %d: pidfd_open: %w", f.Pid, err)
	}
	defer unix.Close(pfd)
	fd, err := unix.PidfdGetfd(pfd, f.FD, 0)
	if err == unix.ESRCH || err == unix.EBADF {
		return -1, fmt.Errorf("take a socket of process %d: %w", f.Pid, ErrGone)
	} else if err != nil {
		return -1, fmt.Errorf("take a socket of process %d: pidfd_getfd: %w", f.Pid, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Ino != uint64(inode) || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		unix.Close(fd)
		return -1, errors.Join(fmt.Errorf("take a socket of process %d: it has closed it: %w", f.Pid, fs.ErrNotExist), err)
	}
	return fd, nil
}
