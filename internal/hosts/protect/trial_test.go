package protect

import (
	"strings"
	"testing"
	"time"

	"holdfast/internal/platform/linux/pidfd"
	"holdfast/internal/platform/linux/sockdiag"
)

func TestIsTrial(t *testing.T) {
	for line, want := range map[string]bool{
		"nginx -t": true, "nginx -qt": true, "/usr/sbin/nginx -t -q -g daemon~on;~master_process~on;": true, "nginx -c /etc/x.conf -T": true,
		"nginx -p/srv/t -t": true, "nginx -e - -t": true,
		"nginx": false, "nginx -g daemon~on;": false, "nginx -c -t": false, "nginx -ct": false, "nginx -c /etc/t.conf": false,
		"nginx:~master~process~nginx~-t": false, "nginx -s stop": false, "nginx x -t": false, "": false,
	} {
		argv := strings.Fields(line)
		for i := range argv {
			argv[i] = strings.ReplaceAll(argv[i], "~", " ")
		}
		if got := isTrial(argv); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}

// A listener whose process is not found belongs to one that ends, for a while, and then to a server
// in another pid namespace.
func TestListenerWithoutProcess(t *testing.T) {
	none := func([]sockdiag.Listener) (map[uint32]pidfd.OpenFile, error) { return nil, nil }
	tr := &trials{none, make(map[uint64]time.Time)}
	fresh := []sockdiag.Listener{{Inode: 7, Cookie: 9}}
	for look := range 2 {
		if !tr.hold(fresh) {
			t.Errorf("the hold ends at look %d", look+1)
		}
	}
	tr.unseen[9] = time.Now().Add(-endTime)
	if tr.hold(fresh) {
		t.Error("the hold goes on for ever")
	}
}
