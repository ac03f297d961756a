package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/engine"
)

// A session is found by its container's label, or for a container that was warm by the
// identity in its directory.
func TestSessionsAreNamed(t *testing.T) {
	identityDir := func(text string) string {
		dir := t.TempDir()
		if text != "" {
			if err := os.WriteFile(filepath.Join(dir, "session.json"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	for name, c := range map[string]struct {
		labels            map[string]string
		session, template string
	}{
		"booted":         {map[string]string{sessionLabel: "alice", templateLabel: "web"}, "alice", "web"},
		"was warm":       {map[string]string{templateLabel: "web", identityDirLabel: identityDir(`{"session":"bob","epoch":7,"env":{}}`)}, "bob", "web"},
		"still warm":     {map[string]string{templateLabel: "web", identityDirLabel: identityDir("")}, "", "web"},
		"invalid key":    {map[string]string{templateLabel: "web", identityDirLabel: identityDir(`{"session":"../x\u001b"}`)}, "", "web"},
		"invalid JSON":   {map[string]string{templateLabel: "web", identityDirLabel: identityDir("x")}, "", "web"},
		"relative path":  {map[string]string{templateLabel: "web", identityDirLabel: "."}, "", "web"},
		"not Holdfast's": {nil, "", ""},
	} {
		id := strings.Repeat("ab", 32)
		n := Namer{containers: map[string]engine.Container{id: {ID: id, Name: "c", Labels: c.labels}}}
		w := n.subject(fact.Subject{Cgroup: "/docker/" + id})
		if w == nil || w.Session != c.session || w.Template != c.template || w.Container != "c" {
			t.Errorf("%s: %+v", name, w)
		}
	}
}
