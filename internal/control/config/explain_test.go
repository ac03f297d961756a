package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

// explained explains text as a configuration file.
func explained(t *testing.T, text string, flags Overrides, env Environment) map[string]Setting {
	t.Helper()
	path := filepath.Join(t.TempDir(), "holdfast.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := Explain(t.Context(), path, flags, env)
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]Setting{}
	for _, s := range e.Settings {
		if _, twice := by[s.Key]; twice {
			t.Errorf("%s is there twice", s.Key)
		}
		by[s.Key] = s
	}
	return by
}

func TestExplainSaysWhereValuesComeFrom(t *testing.T) {
	got := explained(t, `node: n1
gateway:
  listen: 127.0.0.1:1
  "park_time": 90s
log: {level: warn}
gc: {high: 80%, rules: [{kinds: [image], max_used: 20GiB}]}
templates:
  - name: web
    image: web:1
    memory: 512MiB
    env: {PASSWORD: swordfish}
    ready: &ready {http: /ok}
  - name: other
    ready: *ready
`, Overrides{GatewayListen: "[::1]:2", APIListen: "none", EtcdEndpoints: "a:1,b:2"}, Environment{DockerHost: "tcp://me:swordfish@engine:2375", Socket: "/s"})
	for _, want := range []Setting{
		{Key: "node", Value: "n1", From: FromFile, Line: 1},
		{Key: "gateway.listen", Value: "[::1]:2", From: FromFlag, Name: "--gateway"},
		{Key: "gateway.park_time", Value: "1m30s", From: FromFile, Line: 4},
		{Key: "gateway.max_body_bytes", Value: int64(10 << 30), From: FromDefault},
		{Key: "api.listen", Value: "", From: FromFlag, Name: "--api"},
		{Key: "api.socket", Value: "/s", From: FromEnvironment, Name: "HOLDFAST_SOCKET"},
		{Key: "engine.host", Value: "tcp://me:xxxxx@engine:2375", From: FromEnvironment, Name: "DOCKER_HOST"},
		{Key: "store.endpoints", Value: []string{"a:1", "b:2"}, From: FromFlag, Name: "--etcd-endpoints"},
		{Key: "log.level", Value: "warn", From: FromFile, Line: 5},
		{Key: "log.format", Value: "text", From: FromDefault},
		{Key: "sessions.idle_stop", Value: "30m", From: FromDefault},
		{Key: "gc.high", Value: "80%", From: FromFile, Line: 6},
		{Key: "gc.rules[0].max_used", Value: "20GiB", From: FromFile, Line: 6},
		{Key: "gc.rules[0].pressure", Value: false, From: FromDefault},
		{Key: "templates[0].memory", Value: "512MiB", From: FromFile, Line: 10},
		{Key: "templates[0].env.PASSWORD", From: FromFile, Line: 11, Hidden: true},
		{Key: "templates[0].init", Value: true, From: FromDefault},
		{Key: "templates[0].mounts", Value: []string{}, From: FromDefault},
		{Key: "templates[1].name", Value: "other", From: FromFile, Line: 13},
		{Key: "templates[1].ready.http", Value: "/ok", From: FromFile, Line: 14},
	} {
		if diff := cmp.Diff(want, got[want.Key]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Key, diff)
		}
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "swordfish") {
		t.Errorf("a secret is shown: %s", text)
	}
}

// The file overrides DOCKER_HOST, as in opening the engine. A flag overrides the socket
// in the environment.
func TestExplainOrdersTheEnvironment(t *testing.T) {
	got := explained(t, "engine: {host: 'unix:///e'}", Overrides{Socket: "/flag"}, Environment{DockerHost: "unix:///other", Socket: "/env"})
	if s := got["engine.host"]; s.Value != "unix:///e" || s.From != FromFile {
		t.Errorf("%+v", s)
	}
	if s := got["api.socket"]; s.Value != "/flag" || s.Name != "--socket" {
		t.Errorf("%+v", s)
	}
	if s := explained(t, "", Overrides{}, Environment{})["engine.host"]; s.Value != defaultDocker || s.From != FromDefault {
		t.Errorf("%+v", s)
	}
	if s := explained(t, "engine: {name: containerd}", Overrides{}, Environment{DockerHost: "unix:///other"})["engine.host"]; s.Value != defaultContainerd || s.From != FromDefault {
		t.Errorf("%+v", s)
	}
}

// Every key of a file is shown: a new type cannot be forgotten.
func TestExplainShowsEveryKey(t *testing.T) {
	text, err := os.ReadFile("../../../packaging/holdfast.yaml")
	if err != nil {
		t.Fatal(err)
	}
	whole := uncommented(string(text))
	var all any
	if err := yaml.Unmarshal([]byte(whole), &all); err != nil {
		t.Fatal(err)
	}
	got := explained(t, whole, Overrides{}, Environment{})
	var walk func(key string, v any)
	walk = func(key string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, x := range v {
				walk(join(key, name), x)
			}
			return
		case []any:
			if _, plain := got[key]; !plain {
				for i, x := range v {
					walk(key+"["+string(rune('0'+i))+"]", x)
				}
				return
			}
		}
		if s := got[key]; s.From != FromFile || s.Line == 0 {
			t.Errorf("%s: %+v, want it from the file", key, s)
		}
	}
	walk("", all)
	if n := reflect.TypeFor[Config]().NumField(); len(got) < 5*n {
		t.Errorf("only %d settings", len(got))
	}
}

func TestExplainFileThatIsNotThere(t *testing.T) {
	if _, err := Explain(t.Context(), "/nowhere/holdfast.yaml", Overrides{}, Environment{}); err == nil {
		t.Error("a missing named file is no error")
	}
}
