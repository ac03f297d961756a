package deb

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// An engine loads the container image without a registry. The image prints its version, runs an
// agent that serves a session, and runs the doctor with the rights of the DaemonSet.
func TestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a machine and an engine take their time, and root")
	}
	d := newDebian(t, serverImage(t))
	first, _ := packages(t)
	d.copy(one(t, filepath.Dir(first), "image", goArch(t)), "root/image.tar")
	d.Run("docker load -q -i image.tar")
	if out := d.Run("docker run --rm --network none holdfast version --socket /nowhere"); !strings.Contains(out, "v1.0.0") {
		t.Errorf("version %q", out)
	}
	d.write("etc/holdfast/holdfast.yaml", "templates: [{name: web, image: testserver:latest, port: 8080}]\n")
	page, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	run := regexp.MustCompile(`(?m)^docker run (.*\\\n)*.*$`).FindString(string(page))
	if !strings.HasSuffix(run, " holdfast") {
		t.Fatalf("docs/install.md runs %q", run)
	}
	d.Run(run)
	d.awaited("the agent in the container serves a session", "docker exec holdfast holdfast session ls && curl -sf http://127.0.0.1:7070/s/alice/")
	d.Run("docker exec holdfast holdfast drain; docker stop holdfast")

	manifest, err := os.ReadFile("../../deploy/kubernetes/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, add, _ := strings.Cut(string(manifest), "add:\n")
	add, _, _ = strings.Cut(add, "volumeMounts")
	var caps []string
	for _, m := range regexp.MustCompile(`- ([A-Z_]+)`).FindAllStringSubmatch(add, -1) {
		if m[1] == "BPF" || m[1] == "PERFMON" {
			continue // Debian's engine does not know them; SYS_ADMIN includes both
		}
		caps = append(caps, "--cap-add="+m[1])
	}
	if len(caps) < 4 {
		t.Fatalf("capabilities %v of the DaemonSet", caps)
	}
	out, err := d.Command(t.Context(), "docker run --rm --pid host --read-only --security-opt no-new-privileges --cap-drop ALL "+strings.Join(caps, " ")+
		" --tmpfs /tmp --tmpfs /run/holdfast -v /sys:/sys:ro holdfast doctor --for 1s --json").Output()
	// 9: it has findings; 0: it has none.
	if err != nil && !strings.Contains(err.Error(), "exit status 9") || !strings.Contains(string(out), `"findings"`) {
		t.Errorf("the doctor in a container: %v\n%s", err, out)
	}
}
