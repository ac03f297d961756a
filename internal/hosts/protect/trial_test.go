package protect

import (
	"strings"
	"testing"
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
