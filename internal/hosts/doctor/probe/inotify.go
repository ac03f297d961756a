package probe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"holdfast/internal/hosts/doctor/fact"
)

// inotifyProbe counts inotify instances and watches by user. The kernel limits both for
// each user and reports the numbers nowhere (inotify(7)).
func inotifyProbe() Probe {
	return Probe{
		Name: "inotify", Sees: "limits of open files and of inotify that are nearly reached, and scanners of files", Once: true,
		Gives: []string{fact.InotifySeen, fact.Inotify, fact.ProcessFiles, fact.HeldMounts, fact.UserLimit, fact.Scanners, fact.FanotifyHeld, fact.FanotifyWait, fact.FanotifyBy, fact.FanotifyCPUWait, fact.Unread},
		Open:  moment(readInotify),
	}
}

// Bounds of the probe: open files of one process, and bytes of the description of an
// instance's watches.
const (
	maxOpen    = 10_000
	maxWatches = 64 << 20
)

// userLimit is a limit of a user.
type userLimit struct {
	uid  uint32
	kind string
}

// use is the use of a limit, in all and by process.
type use struct {
	used float64
	by   map[int]float64
}

// holder returns the process that uses most, if its control group has at least half of all. Many
// containers with a few each have reached the limit together.
func (u use) holder(h Host) fact.Subject {
	pid, groups := 0, make(map[string]float64)
	for p, n := range u.by {
		group, _ := groupOf(h, p) // "" if it has ended
		groups[group] += n
		if n > u.by[pid] || n == u.by[pid] && p < pid {
			pid = p
		}
	}
	s := processOf(h, pid)
	if pid == 0 || groups[s.Cgroup] < u.used/2 {
		return fact.Subject{}
	}
	return s
}

// Kinds of limits; the names of the limits are below /proc/sys/fs/inotify.
const (
	inotifyInstances = "instances"
	inotifyWatches   = "watches"
)

func readInotify(ctx context.Context, h Host) ([]fact.Fact, error) {
	limits := make(map[string]float64)
	for _, kind := range []string{inotifyInstances, inotifyWatches} {
		var err error
		if limits[kind], err = number(string(h.Proc) + "/sys/fs/inotify/max_user_" + kind); err != nil {
			return nil, err
		}
	}
	pids, err := h.Proc.Pids()
	if err != nil {
		return nil, err
	}
	var files, held []fact.Fact
	var scanners []int
	users := make(map[uint32]bool)
	uses := make(map[userLimit]use)
	pipes := make(map[string]bool)
	var full inboxes
	defer func() { full.close() }()
	least := unreadFrom(h)
	count := func(l userLimit, n float64, pid int) {
		u := uses[l]
		if u.by == nil {
			u.by = make(map[int]float64)
		}
		u.used += n
		if n > 0 {
			u.by[pid] = n
		}
		uses[l] = u
	}
	for _, pid := range pids {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		o, err := openFiles(h, pid, pipes)
		full = append(full, openInboxes(h, pid, o.inotify, least)...)
		if share, ok := filesShare(h, pid, o.files); ok {
			files = append(files, fact.Fact{Name: fact.ProcessFiles, Value: share, Unit: fact.Share, Subject: processOf(h, pid)})
		}
		if o.mounts >= heldFrom {
			held = append(held, fact.Fact{Name: fact.HeldMounts, Value: o.mounts, Unit: fact.Count, Subject: processOf(h, pid)})
		}
		if err != nil && !gone(err) { // without access to a process, the use of its user is unknown
			return nil, err
		}
		uid, ok := ownerOf(h, pid)
		if !ok {
			continue
		}
		count(userLimit{uid, LimitFanotify}, o.fanotify, pid)
		if o.asked {
			scanners = append(scanners, pid)
		}
		count(userLimit{uid, LimitPipes}, pagesOf(h, pid, o.pipes), pid)
		if len(o.inotify) == 0 {
			continue
		}
		users[uid] = true
		count(userLimit{uid, inotifyInstances}, float64(len(o.inotify)), pid)
		count(userLimit{uid, inotifyWatches}, o.watches, pid)
	}
	fs := []fact.Fact{host(fact.InotifySeen, float64(len(users)), fact.Count)}
	for l, u := range uses {
		if l.kind == LimitFanotify || l.kind == LimitPipes {
			fs = append(fs, sharedLimit(h, l.kind, u)...)
			continue
		}
		if limits[l.kind] <= 0 {
			continue
		}
		s := u.holder(h)
		s.Device = fmt.Sprintf("%s of user %d", l.kind, l.uid)
		fs = append(fs, fact.Fact{Name: fact.Inotify, Value: u.used / limits[l.kind], Unit: fact.Share, Subject: s})
	}
	return slices.Concat(fs, full.unread(ctx, h), largest(files, shownProcesses), largest(held, shownProcesses), fanotifyWaits(ctx, h, scanners)), nil
}

// leastPipes is the number of pages from which fs.pipe-user-pages-soft is a limit that one process has
// reached, and not any with a pipe: four pipes of the usual size. The kernel's default is 1,024 pipes
// (pipe(7)).
const leastPipes = 64

// sharedLimit returns the share of a user's limit, if it is over limitsShown. Kernels before
// Linux 5.13 have no limit of fanotify, and 0 is none.
func sharedLimit(h Host, name string, u use) []fact.Fact {
	most, err := number(string(h.Proc) + "/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil || most <= 0 || u.used <= limitsShown*most {
		return nil
	}
	s := u.holder(h)
	if name == LimitPipes && most < leastPipes {
		s = fact.Subject{} // whichever process has a pipe is over it
	}
	s.Device = name
	return []fact.Fact{{Name: fact.UserLimit, Value: min(1, u.used/most), Unit: fact.Share, Subject: s}}
}

// filesFrom is the number of open files from which a process's limit is read, and filesShown
// the share of it that becomes a fact. heldFrom is the number of open mount namespaces from
// which they are a fact: an engine has one for each container at most.
const (
	filesFrom  = 200
	filesShown = 0.5
	heldFrom   = 50
)

// filesShare returns the share of a process's own limit that its open files use.
func filesShare(h Host, pid int, open float64) (float64, bool) {
	if open < filesFrom {
		return 0, false
	}
	limit, ok := softLimit(h, pid, "Max open files")
	return open / limit, ok && open > filesShown*limit
}

// open has the numbers of a process's open files, of its watches of inotify, of
// the mount namespaces that it keeps, and of its groups of fanotify; asked means that one of these
// is asked for permission. Of each of its pipes and instances it has a descriptor.
type open struct {
	files, watches, mounts, fanotify float64
	asked                            bool
	pipes, inotify                   []string
}

// openFiles counts a process's open files. Pipes that are among those known count for the
// process that had them first.
func openFiles(h Host, pid int, known map[string]bool) (o open, err error) {
	dir := string(h.Proc) + "/" + strconv.Itoa(pid)
	d, err := os.Open(dir + "/fd")
	if err != nil {
		return o, err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxOpen)
	if err != nil && !errors.Is(err, io.EOF) {
		return o, err
	}
	o.files = float64(len(names))
	for _, name := range names {
		to, err := os.Readlink(dir + "/fd/" + name)
		switch {
		case err != nil:
		case strings.HasPrefix(to, "mnt:["):
			o.mounts++
		case to == "anon_inode:[fanotify]":
			o.fanotify++
			text, _ := read(dir + "/fdinfo/" + name) // none if it is closed
			o.asked = o.asked || asks(text)
		case strings.HasPrefix(to, "pipe:[") && !known[to]:
			known[to] = true
			o.pipes = append(o.pipes, name)
		}
		if err != nil || to != "anon_inode:inotify" {
			continue
		}
		o.inotify = append(o.inotify, name)
		n, err := countPrefix(dir+"/fdinfo/"+name, "inotify wd:", maxWatches) // proc_pid_fdinfo(5)
		if err != nil && !gone(err) {
			return o, err
		}
		o.watches += n
	}
	return o, nil
}

// countPrefix counts the lines of a file that begin so, in at most so many of its bytes.
func countPrefix(file, prefix string, most int64) (float64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n := 0.0
	lines := bufio.NewScanner(io.LimitReader(f, most))
	for lines.Scan() {
		if bytes.HasPrefix(lines.Bytes(), []byte(prefix)) {
			n++
		}
	}
	return n, lines.Err()
}

// ownerOf returns the user of a process.
func ownerOf(h Host, pid int) (uint32, bool) {
	fi, err := os.Stat(string(h.Proc) + "/" + strconv.Itoa(pid))
	if err != nil {
		return 0, false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Uid, true
}
