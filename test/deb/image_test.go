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

	d.collectsInAContainer()

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

// collectsInAContainer runs the documented containers of a collector on a disk that counts as
// full. Without the engine's data root the collector ends.
func (d debian) collectsInAContainer() {
	t := d.t
	t.Helper()
	page, err := os.ReadFile("../../docs/gc.md")
	if err != nil {
		t.Fatal(err)
	}
	run := regexp.MustCompile(`(?m)^docker run (.*\\\n)*.*$`).FindString(string(page))
	_, compose, _ := strings.Cut(string(page), "```yaml\nservices:")
	compose, _, _ = strings.Cut(compose, "```")
	if !strings.HasSuffix(run, " holdfast gc serve") || !strings.Contains(compose, "command: gc serve") {
		t.Fatalf("docs/gc.md runs %q and %q", run, compose)
	}
	d.write("root/compose.yaml", "version: '2.4'\nservices:"+compose)
	d.write("etc/holdfast/holdfast.yaml", `gc: {every: 1s, min_age: 0s, low: 1B, high: 2B, critical: 99.9%, rules: [{kinds: [image], match: ["old:*"], pressure: true}]}`)
	const gone = "! docker image inspect "
	for _, c := range []struct{ image, begin, end string }{
		{"old:1", run, "docker rm -f holdfast-gc"},
		{"old:2", "docker-compose up -d", "docker-compose down"},
	} {
		d.Run("mkdir -p tree && echo " + c.image + " >tree/file && tar -C tree -c . | docker import - " + c.image + "; rm -r tree")
		d.Run(c.begin)
		d.awaited(c.image+" is collected", gone+c.image)
		d.Run(c.end)
	}
	blind := strings.Replace(strings.Replace(run, " -v /var/lib/docker:/var/lib/docker:rslave", "", 1), "-d --name holdfast-gc --restart unless-stopped", "--rm", 1)
	out, err := d.Command(t.Context(), blind).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the disk of the engine is not visible") || !strings.Contains(string(out), "hint: in a container, mount") {
		t.Errorf("without the data root: %v\n%s", err, out)
	}
}
