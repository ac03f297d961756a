package hosts

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"holdfast/test/lab/echoserver"
)

// resumes sets gVisor up as docs/moving.md says, saves a session, and resumes it.
func resumes(h *host) {
	file := filepath.Join(h.TempDir(), "runsc")
	if out, err := exec.CommandContext(h.Context(), "../../packaging/dev/runsc.sh", file).CombinedOutput(); err != nil {
		h.Fatalf("runsc.sh: %v\n%s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		h.Fatal(err)
	}
	h.write("/usr/local/bin/runsc", text)
	h.run(`chmod 755 /usr/local/bin/runsc`)
	all, err := images(h.Context(), h.TempDir())
	if err != nil {
		h.Fatal(err)
	}
	h.load(all[1]) // a collection may have removed it
	if !h.cell.containerd {
		h.engineOption("runtimes", map[string]any{"runsc-holdfast": map[string]any{"path": "/var/lib/holdfast/runsc-holdfast"}})
	}
	h.run("systemctl restart " + h.unit())
	h.configure(template(`name: sandboxed, image: "testserver:latest", runtime: runsc-holdfast, handover: memory, ready: {timeout: 10m}`) + "; systemctl restart holdfast")
	h.run("holdfast session start sandy --template sandboxed")
	count := func() (c echoserver.Count) {
		h.json(&c, "curl -sSf http://127.0.0.1:7070/s/sandy/count")
		return c
	}
	before := h.served("sandy")
	count()
	h.run("holdfast session suspend sandy")
	h.awaited("the container is gone", `test -z "$(`+h.listed("holdfast.session=sandy")+`)"`)
	after := h.served("sandy")
	if c := count(); c.Number != 2 || after.Epoch <= before.Epoch {
		h.Errorf("the session was %+v and is %+v, and its number is %+v\n%s", before, after, c, h.run("holdfast session show sandy; journalctl -o cat -u holdfast | grep -e sandy -e memory | tail -n 20"))
	}
	h.run("holdfast session stop sandy")
}

// engineOption adds an option to the engine's configuration, for its next start.
func (h *host) engineOption(name string, value any) {
	h.Helper()
	options := map[string]any{}
	if text := h.run("cat /etc/docker/daemon.json 2>/dev/null || true"); strings.TrimSpace(text) != "" {
		if err := json.Unmarshal([]byte(text), &options); err != nil {
			h.Fatalf("the engine's configuration: %v", err)
		}
	}
	options[name] = value
	text, err := json.Marshal(options)
	if err != nil {
		h.Fatal(err)
	}
	h.write("/etc/docker/daemon.json", text)
}
