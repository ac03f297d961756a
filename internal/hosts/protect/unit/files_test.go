package unit

import (
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/protect"
)

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"haproxy.service": true, "postgresql@15-main.service": true, `a\x2db.service`: true, "a:b_c.service": true,
		"../x.service": false, "a b.service": false, "a\n.service": false, ".service": false, "@x.service": false, "x@.service": false, "a%b.service": false, "ä.service": false,
		strings.Repeat("a", 250) + ".service": false,
	} {
		if err := valid(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// A text of the command line stays one word, and becomes no other setting.
func TestQuote(t *testing.T) {
	for in, want := range map[string]string{
		"auto": `"auto"`, `exec:/bin/x {host} "y"`: `"exec:/bin/x {host} \"y\""`, "http://x/%41$HOME": `"http://x/%%41$$HOME"`,
		`a\x2db`: `"a\\x2db"`, "a\nExecStart=/bin/sh": `"a ExecStart=/bin/sh"`,
	} {
		if got := quote(in); got != want {
			t.Errorf("%q is %s, want %s", in, got, want)
		}
	}
}

// The files of a service, with and without reloads.
func TestFiles(t *testing.T) {
	s := Settings{Service: "a.service", Addresses: []protect.Address{{Port: 80}}, Backend: protect.Auto, Timeout: 30 * time.Second, Drain: time.Second, Ready: "auto", Program: "/usr/bin/holdfast"}
	files := s.Files("/etc")
	if len(files) != 4 || files[3].Path != "/etc/a.service.d/50-holdfast-protect.conf" {
		t.Errorf("the last of %d files is %s: it has to be the drop-in", len(files), files[len(files)-1].Path)
	}
	if hold := files[0].Text; !strings.Contains(hold, `protect --unit "a.service" --timeout 30s --drain 1s --backend auto --ready "auto" --port 80 --job`) {
		t.Errorf("the hold is\n%s", hold)
	}
	s.RestartOnly = true
	for _, f := range s.Files("/etc") {
		if strings.Contains(f.Path+f.Text, "reload@") {
			t.Errorf("without reloads there is\n%s\n%s", f.Path, f.Text)
		}
	}
}
