package probe

import (
	"context"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/tasks"
)

// inbox is an inotify instance of a process with events that it has not read.
type inbox struct {
	pid, fd int
	bytes   int
}

// eventSize is the size of an inotify event without a name, in bytes (inotify(7)).
const eventSize = 16

// inboxes are those of several processes.
type inboxes []inbox

func (all inboxes) close() {
	for _, i := range all {
		_ = unix.Close(i.fd) // nothing was written
	}
}

// openInboxes opens those of a process's instances, by their descriptors, in which events of at least so
// many bytes wait. It leaves out this process, which has those that it opens, and a procfs of another
// namespace, whose numbers of processes are others.
func openInboxes(h Host, pid int, names []string, least float64) (all inboxes) {
	if len(names) == 0 || pid == os.Getpid() {
		return nil
	}
	if self, _ := os.Readlink(string(h.Proc) + "/self"); self != strconv.Itoa(os.Getpid()) {
		return nil
	}
	for _, name := range names {
		if i, ok := openInbox(pid, name, least); ok {
			all = append(all, i)
		}
	}
	return all
}

// openInbox opens a descriptor of a process if events of at least so many bytes wait in it. It only
// asks for their number: FIONREAD, which has the number of TIOCINQ.
func openInbox(pid int, name string, least float64) (inbox, bool) {
	number, err := strconv.Atoi(name)
	if err != nil {
		return inbox{}, false
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return inbox{}, false // it has ended
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, number, 0)
	if err != nil {
		return inbox{}, false // it is closed, or may not be opened
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil || float64(n) < least {
		unix.Close(fd)
		return inbox{}, false
	}
	return inbox{pid, fd, n}, true
}

// unreadFrom returns from how many bytes events in an instance are a fact: half of those that it may have.
func unreadFrom(h Host) float64 {
	most, err := number(string(h.Proc) + "/sys/fs/inotify/max_queued_events")
	if err != nil {
		most = 16384 // the kernel's default
	}
	return most / 2 * eventSize
}

// unread returns the processes of the instances in which not fewer events wait a second later.
func (all inboxes) unread(ctx context.Context, h Host) (fs []fact.Fact) {
	if len(all) == 0 || tasks.Sleep(ctx, time.Second) != nil {
		return nil
	}
	for _, i := range all {
		if n, err := unix.IoctlGetInt(i.fd, unix.TIOCINQ); err == nil && n >= i.bytes {
			fs = append(fs, fact.Fact{Name: fact.Unread, Value: float64(n), Unit: fact.Bytes, Subject: processOf(h, i.pid)})
		}
	}
	return largest(fs, shownProcesses)
}
