package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"

	"holdfast/internal/control/api/client"
	"holdfast/internal/control/mcp"
	"holdfast/internal/hosts/doctor"
)

// mcpServer is a server in the configuration of a client.
type mcpServer struct {
	Command, Type, URL string
	Args               []string
	Headers, Env       map[string]string
}

// mcpServers are the three forms that clients use.
type mcpServers struct {
	McpServers map[string]mcpServer `json:"mcpServers"`
	Servers    map[string]mcpServer `json:"servers"`
	Inputs     []map[string]any     `json:"inputs"`
	Tables     map[string]mcpServer `toml:"mcp_servers"`
}

// Each configuration of a client in docs/mcp.md starts this command, or names its URL.
func TestMCPClientExamples(t *testing.T) {
	page, err := os.ReadFile("../../../docs/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	var commands, urls int
	for _, block := range regexp.MustCompile("(?s)```(json|toml)\n(.*?)```").FindAllSubmatch(page, -1) {
		var c mcpServers
		if string(block[1]) == "json" {
			d := json.NewDecoder(bytes.NewReader(block[2]))
			d.DisallowUnknownFields()
			err = d.Decode(&c)
		} else {
			err = toml.Unmarshal(block[2], &c)
		}
		if err != nil || len(c.McpServers)+len(c.Servers)+len(c.Tables) == 0 {
			t.Errorf("%s: %v", block[2], err)
		}
		for _, all := range []map[string]mcpServer{c.McpServers, c.Servers, c.Tables} {
			for name, s := range all {
				if s.URL != "" {
					urls++
					u, err := url.Parse(s.URL)
					if err != nil || u.Path != mcp.Path || s.Type != "http" || !strings.HasPrefix(s.Headers["Authorization"], "Bearer ") {
						t.Errorf("%s: %+v, %v", name, s, err)
					}
					continue
				}
				commands++
				words := append([]string{s.Command}, s.Args...)
				at := slices.Index(words, "holdfast")
				if at < 0 {
					t.Fatalf("%s: %q", name, words)
				}
				found, rest, err := newTestRoot(new(bytes.Buffer)).Find(words[at+1:])
				if err != nil || found.Name() != "mcp" || found.ParseFlags(rest) != nil {
					t.Errorf("%s: %q: %v", name, words, err)
				}
				for variable := range s.Env {
					if !slices.Contains([]string{urlEnv, tokenEnv, caEnv}, variable) {
						t.Errorf("%s: variable %s", name, variable)
					}
				}
			}
		}
	}
	if commands != 4 || urls != 1 {
		t.Errorf("%d commands, %d URLs", commands, urls)
	}
}

// docs/mcp.md has every tool.
func TestMCPToolsPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/mcp.md")
	if err != nil {
		t.Fatal(err)
	}
	agent, err := client.New(client.Options{Socket: "/nowhere"})
	if err != nil {
		t.Fatal(err)
	}
	s := mcp.New(mcp.Options{Client: agent, AllowWrite: true, Examine: func(context.Context, time.Duration) (doctor.Report, error) { return doctor.Report{}, nil }})
	for _, name := range s.Tools() {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("the page has no `%s`", name)
		}
	}
}
