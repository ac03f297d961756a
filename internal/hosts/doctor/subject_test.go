package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/engine"
)

// TestSessionsAreNamed: by the label, and where a container was warm before its session
// by what it was told.
func TestSessionsAreNamed(t *testing.T) {
	told := func(text string) string {
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
		"it booted":        {map[string]string{sessionLabel: "alice", templateLabel: "web"}, "alice", "web"},
		"it was warm":      {map[string]string{templateLabel: "web", toldLabel: told(`{"session":"bob","epoch":7,"env":{}}`)}, "bob", "web"},
		"it waits":         {map[string]string{templateLabel: "web", toldLabel: told("")}, "", "web"},
		"what is no key":   {map[string]string{templateLabel: "web", toldLabel: told(`{"session":"../x\u001b"}`)}, "", "web"},
		"what is no JSON":  {map[string]string{templateLabel: "web", toldLabel: told("x")}, "", "web"},
		"no absolute path": {map[string]string{templateLabel: "web", toldLabel: "."}, "", "web"},
		"somebody else's":  {nil, "", ""},
	} {
		id := strings.Repeat("ab", 32)
		n := Namer{containers: map[string]engine.Container{id: {ID: id, Name: "c", Labels: c.labels}}}
		w := n.subject(fact.Subject{Cgroup: "/docker/" + id})
		if w == nil || w.Session != c.session || w.Template != c.template || w.Container != "c" {
			t.Errorf("%s: %+v", name, w)
		}
	}
}
