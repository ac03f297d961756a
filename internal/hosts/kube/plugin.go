package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"holdfast"
)

// plugin is a credential plugin, a command that prints a token
// (client.authentication.k8s.io).
type plugin struct {
	Command    string   `yaml:"command"`
	Args       []string `yaml:"args"`
	APIVersion string   `yaml:"apiVersion"`
	Env        []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	} `yaml:"env"`
	InstallHint string `yaml:"installHint"`
	ProvideInfo bool   `yaml:"provideClusterInfo"`
}

// Limits of a plugin.
const (
	pluginLimit  = time.Minute      // it may open a browser and ask for a login
	pluginEarly  = 30 * time.Second // a new token is requested this long before the old one expires
	pluginOutput = 1 << 20
)

// credential is the plugin's output.
type credential struct {
	Status struct {
		Token   string    `json:"token"`
		Expires time.Time `json:"expirationTimestamp"`
		Cert    string    `json:"clientCertificateData"`
	} `json:"status"`
}

// plugged is a plugin with its last credential.
type plugged struct {
	plugin
	mu    sync.Mutex
	last  string
	until time.Time // zero: it does not expire
}

func (p plugin) prepare(dir string) (*plugged, error) {
	switch {
	case p.Command == "":
		return nil, errors.New("exec: there is no command")
	case p.ProvideInfo:
		return nil, errors.New("exec: provideClusterInfo is not supported")
	case !strings.HasPrefix(p.APIVersion, "client.authentication.k8s.io/"):
		return nil, fmt.Errorf("exec: apiVersion %q is not a version of client.authentication.k8s.io", p.APIVersion)
	}
	if strings.Contains(p.Command, "/") {
		p.Command = below(dir, p.Command)
	}
	return &plugged{plugin: p}, nil
}

// token implements Config.Token.
func (p *plugged) token(ctx context.Context, fresh bool) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !fresh && p.last != "" && (p.until.IsZero() || time.Now().Before(p.until.Add(-pluginEarly))) {
		return p.last, nil
	}
	c, err := p.run(ctx)
	if err != nil {
		return "", holdfast.WithHint(fmt.Errorf("the credential plugin %s: %w", p.Command, err), p.InstallHint)
	}
	p.last, p.until = c.Status.Token, c.Status.Expires
	return p.last, nil
}

func (p *plugged) run(ctx context.Context) (credential, error) {
	ctx, cancel := context.WithTimeout(ctx, pluginLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.Command, p.Args...)
	info, err := json.Marshal(map[string]any{"kind": "ExecCredential", "apiVersion": p.APIVersion, "spec": map[string]any{"interactive": false}})
	if err != nil {
		return credential{}, err
	}
	cmd.Env = append(os.Environ(), "KUBERNETES_EXEC_INFO="+string(info))
	for _, e := range p.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return credential{}, err
	}
	var c credential
	switch err := json.Unmarshal(out.Bytes()[:min(out.Len(), pluginOutput)], &c); {
	case err != nil:
		return c, fmt.Errorf("its output: %w", err)
	case c.Status.Token == "" && c.Status.Cert != "":
		return c, errors.New("it gives a certificate, and only tokens are supported")
	case c.Status.Token == "":
		return c, errors.New("it printed no token")
	}
	return c, nil
}
