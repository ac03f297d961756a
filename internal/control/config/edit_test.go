package config

import (
	"errors"
	"os"
	"strings"
	"testing"

	"holdfast"
)

const profile = "/etc/holdfast/p.json"

// A template gets its line, and nothing else in the file changes.
func TestSetSeccomp(t *testing.T) {
	packaged, err := os.ReadFile("../../../packaging/holdfast.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"demo": string(packaged),
		"web":  "# mine\ntemplates:\n- name: other\n  image: a:1\n  port: 1\n- env:\n    A: b # why\n  name: web\n  image: b:1\n  port: 2",
	} {
		got, changed, err := SetSeccomp(t.Context(), []byte(text), name, profile)
		if err != nil || !changed {
			t.Fatalf("%s: %v", name, err)
		}
		c, err := load(t, string(got), Overrides{})
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, got)
		}
		for _, x := range c.Templates {
			if (x.Seccomp == profile) != (x.Name == name) {
				t.Errorf("template %s has %q", x.Name, x.Seccomp)
			}
		}
		var rest []string
		for line := range strings.Lines(string(got)) {
			if strings.TrimSpace(line) != "seccomp: "+profile {
				rest = append(rest, line)
			}
		}
		if strings.TrimRight(strings.Join(rest, ""), "\n") != strings.TrimRight(text, "\n") {
			t.Errorf("%s: the rest has changed:\n%s", name, got)
		}
		if _, again, err := SetSeccomp(t.Context(), got, name, profile); err != nil || again {
			t.Errorf("%s: changed again, %v", name, err)
		}
		if _, _, err := SetSeccomp(t.Context(), got, name, "/another"); err == nil {
			t.Errorf("%s: another profile is replaced", name)
		}
	}
}

// An unsafe change is refused, with the line to add by hand.
func TestSetSeccompRefuses(t *testing.T) {
	if _, _, err := SetSeccomp(t.Context(), []byte(minimal), "web", profile); err == nil || !strings.Contains(holdfast.HintOf(err), "seccomp: "+profile) {
		t.Errorf("a template on one line: %v", err)
	}
	if _, _, err := SetSeccomp(t.Context(), []byte(minimal), "none", profile); !errors.Is(err, holdfast.ErrNotFound) {
		t.Errorf("an unknown template: %v", err)
	}
	if _, _, err := SetSeccomp(t.Context(), []byte("nonsense: 1\n"), "web", profile); err == nil {
		t.Error("a file with an unknown key is changed")
	}
	if _, err := load(t, "templates: [{name: web, image: a, port: 1, seccomp: p.json}]", Overrides{}); err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("a relative path: %v", err)
	}
}
