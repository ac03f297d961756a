package kube

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// Several files are one; the first that has a name or a context counts, and paths are
// relative to the file that they stand in.
func TestLoadJoinsFiles(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	write(t, two, "ca.pem", "the authority")
	write(t, two, "token", " secret\n")
	a := write(t, one, "a", "current-context: mine\ncontexts:\n- {name: mine, context: {cluster: c, user: u, namespace: ns}}\nusers:\n- {name: x, user: {token: no}}\n")
	b := write(t, two, "b", "current-context: other\nclusters:\n- {name: c, cluster: {server: 'https://host:6443/base', certificate-authority: ca.pem, tls-server-name: name}}\n"+
		"users:\n- {name: u, user: {tokenFile: token, as: me, as-groups: [g]}}\n- {name: u, user: {token: second}}\n")
	t.Setenv(PathEnv, a+":"+filepath.Join(one, "missing")+":"+b)
	c, err := Load("", "")
	if err != nil {
		t.Fatal(err)
	}
	token, err := c.Token(t.Context(), false)
	if err != nil || token != "secret" {
		t.Errorf("token %q, %v", token, err)
	}
	if c.Server != "https://host:6443/base" || string(c.CA) != "the authority" || c.ServerName != "name" || c.Namespace != "ns" || c.AsUser != "me" || len(c.AsGroups) != 1 || c.Context != "mine" {
		t.Errorf("%+v", c)
	}
	write(t, two, "token", "next")
	if token, _ := c.Token(t.Context(), false); token != "secret" {
		t.Errorf("the token was read again at once: %q", token)
	}
	if token, _ := c.Token(t.Context(), true); token != "next" {
		t.Errorf("a fresh token is %q", token)
	}
}

func TestLoadRefuses(t *testing.T) {
	const cluster = "clusters: [{name: c, cluster: {server: 'https://h'}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
	for name, c := range map[string]struct{ text, want string }{
		"no YAML":         {"contexts: [", "kubeconfig: "},
		"no context":      {"contexts: []", "no current-context"},
		"unknown context": {"current-context: z", `no context "z"`},
		"unknown cluster": {"current-context: x\ncontexts: [{name: x, context: {cluster: z}}]", `no cluster "z"`},
		"unknown user":    {cluster, `no user "u"`},
		"no server":       {"current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\nclusters: [{name: c, cluster: {}}]", "no server"},
		"password":        {cluster + "users: [{name: u, user: {username: a, password: b}}]", "1.19"},
		"provider":        {cluster + "users: [{name: u, user: {auth-provider: {name: gcp}}}]", "auth-provider"},
		"bad data":        {cluster + "users: [{name: u, user: {client-key-data: '%%'}}]", "client-key-data"},
		"missing file":    {cluster + "users: [{name: u, user: {client-certificate: none}}]", "client-certificate"},
		"old plugin":      {cluster + "users: [{name: u, user: {exec: {command: x, apiVersion: v1}}}]", "apiVersion"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Load(write(t, t.TempDir(), "k", c.text), ""); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none"), ""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is named and missing: %v", err)
	}
	if _, err := New(Config{Server: "http://h", Token: tokenFile("x")}, Options{}); err == nil {
		t.Error("a token would go over the network as it is")
	}
}

// A plugin is asked once, and again shortly before its token ends, or when the server
// does not take it.
func TestPlugin(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "plug", `#!/bin/sh
case "$KUBERNETES_EXEC_INFO" in *ExecCredential*) ;; *) exit 3;; esac
echo x >> "$COUNT"
n=$(wc -l < "$COUNT")
printf '{"kind":"ExecCredential","status":{"token":"t%d","expirationTimestamp":"%s"}}' "$n" "$ENDS"
`)
	count := filepath.Join(dir, "count")
	p := plugin{Command: "./plug", APIVersion: "client.authentication.k8s.io/v1"}
	p.Env = append(p.Env, struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	}{"COUNT", count})
	t.Setenv("ENDS", time.Now().Add(time.Hour).Format(time.RFC3339))
	run, err := p.prepare(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := func(token string, fresh bool) {
		t.Helper()
		if got, err := run.token(t.Context(), fresh); err != nil || got != token {
			t.Errorf("token %q, %v; want %q", got, err, token)
		}
	}
	want("t1", false)
	want("t1", false)
	t.Setenv("ENDS", time.Now().Add(pluginEarly/2).Format(time.RFC3339))
	want("t2", true)
	want("t3", false) // t2 ends too soon
	p.Command = "/none"
	if run, err = p.prepare(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := run.token(t.Context(), false); err == nil {
		t.Error("a plugin that is not there gave a token")
	}
}

func TestSelector(t *testing.T) {
	s := &LabelSelector{Labels: map[string]string{"app": "web"}, Expressions: []Requirement{
		{"tier", "In", []string{"a", "b"}}, {"old", "DoesNotExist", nil}, {"zone", "NotIn", []string{"z"}}, {"name", "Exists", nil}}}
	good := map[string]string{"app": "web", "tier": "a", "name": ""}
	if !s.Chooses(good) {
		t.Error("it does not choose what it should")
	}
	for k, v := range map[string]string{"app": "x", "tier": "c", "old": "", "zone": "z"} {
		bad := map[string]string{"app": "web", "tier": "a", "name": "", k: v}
		if s.Chooses(bad) {
			t.Errorf("it chooses %v", bad)
		}
	}
	if (*LabelSelector)(nil).Chooses(good) || !(&LabelSelector{}).Chooses(nil) {
		t.Error("none chooses none, and an empty one all")
	}
}
