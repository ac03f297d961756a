package reload

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	bench "holdfast/bench/reload"
	"holdfast/test/lab/labtest"
	"holdfast/test/vm"
)

// No client fails with plug either. It needs a kernel that has the qdisc, such as Debian's.
func TestPlugInAMachine(t *testing.T) {
	labtest.NeedLong(t, "an emulated machine takes minutes; internal/hosts/protect/plug tests the backend in one")
	files := map[string]string{"/bin/holdfast": program(t), "/bin/holdfast-bench": filepath.Join(t.TempDir(), "holdfast-bench")}
	if err := labtest.Build(t.Context(), "holdfast/cmd/holdfast-bench", files["/bin/holdfast-bench"]); err != nil {
		t.Fatal(err)
	}
	files["/etc/passwd"], files["/etc/group"] = "/etc/passwd", "/etc/group" // for nginx's user
	for _, p := range []string{"/usr/sbin/haproxy", "/usr/sbin/nginx"} {
		files[p] = p
		out, err := exec.Command("ldd", p).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range strings.Fields(string(out)) {
			if strings.HasPrefix(word, "/") { // a library, or the loader
				files[word] = word
			}
		}
	}
	var out bytes.Buffer
	code, err := vm.Run(t.Context(), vm.Config{
		Command: []string{"/bin/holdfast-bench", "reload", "--json", "--html", "", "--mode", "nothing,plug,plug-installed", "-n", "1000", "--rate", "20", "--drain", "20s"},
		Env:     []string{"PATH=/bin:/usr/sbin", "HOME=/"}, Files: files, Output: &out, Memory: 1024,
		Busybox: []string{"sh", "cat", "kill"},
		Modules: []string{"sch_prio", "sch_plug", "cls_flower", "tcp_diag", "mptcp_diag", "nf_tables"},
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.Bytes())
	}
	t.Logf("exit code %d\n%s", code, out.Bytes())
	var r struct{ Details bench.Details }
	if i := bytes.IndexByte(out.Bytes(), '{'); i < 0 || json.NewDecoder(bytes.NewReader(out.Bytes()[i:])).Decode(&r) != nil {
		t.Fatal("no result")
	}
	seen := 0
	for _, r := range r.Details.Runs {
		if r.Mode != bench.Plug && r.Mode != bench.Toggled {
			continue
		}
		seen++
		if r.Skipped != "" || r.Failed != 0 || r.Changes == 0 {
			t.Errorf("%s: %d requests, %d failed: %v; %d changes %s", r.Name(), r.Requests, r.Failed, r.Reasons, r.Changes, r.Skipped)
		}
	}
	if seen != 4 {
		t.Errorf("%d runs", seen)
	}
}
