package protect

import (
	"slices"
	"strings"
	"time"

	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/proc"
	"holdfast/internal/platform/linux/sockdiag"
)

// trials tells a new server from a test of its configuration: `nginx -t`, which Debian's unit
// and init script run before the start, listens for a moment.
type trials struct {
	owners func([]sockdiag.Listener) (map[uint32]pidfd.OpenFile, error)
	// unseen has the time since when the process of a listener was not found, by its cookie.
	// Such a process ends, or it is in another pid namespace.
	unseen map[uint64]time.Time
}

// endTime is how long a process that ends may still have its listener. It closes its files after
// they are gone from /proc (kernel/exit.c, exit_files and exit_task_work), and on busy CPUs it waits
// for one in between.
const endTime = 250 * time.Millisecond

// newTrials returns nil if the old server is none of which such a test is known.
func newTrials(old []sockdiag.Listener, owners func([]sockdiag.Listener) (map[uint32]pidfd.OpenFile, error)) *trials {
	open, err := owners(old)
	if err != nil {
		return nil
	}
	for _, f := range open {
		if s, err := proc.Host.Stat(f.Pid); err == nil && slices.Contains([]string{"nginx", "openresty", "angie", "freenginx"}, s.Comm) {
			return &trials{owners, make(map[uint64]time.Time)}
		}
	}
	return nil
}

// hold reports whether one of the listeners is no server's, or cannot be told yet: then the
// hold goes on. A nil trials knows none.
func (t *trials) hold(fresh []sockdiag.Listener) bool {
	if t == nil {
		return false
	}
	open, err := t.owners(fresh)
	if err != nil {
		return false // the limit of descriptors is reached, or /proc is not mounted
	}
	wait := false
	for _, l := range fresh {
		f, ok := open[l.Inode]
		if !ok {
			since, known := t.unseen[l.Cookie]
			if !known {
				since = time.Now()
				t.unseen[l.Cookie] = since
			}
			wait = wait || time.Since(since) < endTime
			continue
		}
		// A process that ends has no arguments any more, and may still have its sockets.
		argv, err := proc.Host.Cmdline(f.Pid)
		wait = wait || err != nil || len(argv) == 0 || isTrial(argv)
	}
	return wait
}

// isTrial reports whether nginx with these arguments only tests its configuration (-t, -T). It
// reads them as ngx_get_options of nginx's source does: letters without a value may share a
// word, and a value follows its letter or is the next word.
func isTrial(argv []string) bool {
	for i := 1; i < len(argv); i++ {
		letters, ok := strings.CutPrefix(argv[i], "-")
		if !ok {
			return false // nginx refuses it
		}
		for n, c := range letters {
			if c == 't' || c == 'T' {
				return true
			}
			if strings.ContainsRune("pcegs", c) {
				if n == len(letters)-1 {
					i++
				}
				break
			}
		}
	}
	return false
}
