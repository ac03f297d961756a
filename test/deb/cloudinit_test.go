package deb

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"holdfast/test/lab"
	"holdfast/test/lab/labtest"
)

// cloudConfig is the part of cloud-init's user data that docs/preemption.md uses.
type cloudConfig struct {
	WriteFiles []struct {
		Path    string `yaml:"path"`
		Content string `yaml:"content"`
	} `yaml:"write_files"`
	Runcmd [][]string `yaml:"runcmd"`
}

// The user data of docs/preemption.md sets up a fresh machine, in cloud-init's order: files first,
// then commands. cloud-init itself does not run, because it would set up the network and users.
func TestCloudInit(t *testing.T) {
	labtest.NeedLong(t, "boots a Debian and installs the package; TestGuide installs it, too")
	if testing.Short() {
		t.Skip("-short: machines and engines take their time, and root")
	}
	page, err := os.ReadFile("../../docs/preemption.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n#cloud-config\n")
	text, _, found := strings.Cut(text, "```")
	var c cloudConfig
	if err := yaml.Unmarshal([]byte(text), &c); err != nil || !found || len(c.Runcmd) == 0 {
		t.Fatalf("%v, %d commands", err, len(c.Runcmd))
	}
	busybox, err := lab.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	d := newDebian(t, busybox)
	d.hasRegistry()
	for _, f := range c.WriteFiles {
		d.Run("mkdir -p " + filepath.Dir(f.Path))
		d.write(strings.TrimPrefix(f.Path, "/"), f.Content)
	}
	for _, command := range c.Runcmd {
		if command[0] == "curl" { // there is no such server
			command = []string{"sh", "-c", "cp dist/holdfast_*.deb " + command[2]}
		}
		for i, arg := range command {
			command[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		d.Run(strings.Join(command, " ") + " </dev/null")
	}
	d.Run("holdfast config check && curl -sf --retry 60 --retry-connrefused --retry-delay 1 http://127.0.0.1:7070/s/alice/ | grep -x alice")
	d.Run("systemd-inhibit --list --no-pager | grep holdfast") // the agent delays a shutdown
	for _, cloud := range []string{"aws", "azure"} {
		d.Run("sed 's/gce:/" + cloud + ":/' /etc/holdfast/holdfast.yaml >other.yaml && grep -q " + cloud + " other.yaml && holdfast config check other.yaml")
	}
}
