package config

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"holdfast/internal/hosts/gc"
)

// Source is the source of a setting's value.
type Source string

// The sources.
const (
	FromDefault     Source = "default"
	FromFile        Source = "file"
	FromFlag        Source = "flag"
	FromEnvironment Source = "environment"
)

// Setting is one effective value.
type Setting struct {
	Key string `json:"key"` // gateway.listen, templates[0].image
	// Value is a text, a number, a bool or a list of texts; times and sizes are texts
	// in the syntax of the file.
	Value any    `json:"value"`
	From  Source `json:"from"`
	Line  int    `json:"line,omitempty"` // in the file, from 1
	Name  string `json:"name,omitempty"` // of the flag or the variable
	// A hidden setting has no value here: it may be a secret.
	Hidden bool `json:"hidden,omitempty"`
}

// Explained is a configuration with the source of each value.
type Explained struct {
	Config   Config    `json:"-"`
	File     string    `json:"file"`
	Found    bool      `json:"found"` // the file exists; the default file may be missing
	Settings []Setting `json:"settings"`
}

// Environment are the variables that set keys.
type Environment struct {
	DockerHost string // DOCKER_HOST, overridden by the file
	Socket     string // HOLDFAST_SOCKET, overrides the file and is overridden by the flag
}

// Names of those variables.
const (
	dockerHostEnv = "DOCKER_HOST"
	socketEnv     = "HOLDFAST_SOCKET"
)

// Default addresses of the engines.
const (
	defaultDocker     = "unix:///var/run/docker.sock"
	defaultContainerd = "unix:///run/containerd/containerd.sock"
)

// Explain is Load with the source of each value. It checks only the file's syntax:
// Validate checks the rest. It leaves out possible secrets: the environment of
// containers, and passwords in URLs.
func Explain(ctx context.Context, path string, flags Overrides, env Environment) (Explained, error) {
	e := Explained{File: cmp.Or(path, DefaultPath)}
	over := flags
	over.Socket = cmp.Or(flags.Socket, env.Socket)
	var text []byte
	var err error
	if e.Config, text, err = read(ctx, e.File, path != "", over); err != nil {
		return e, err
	}
	e.Found = text != nil
	sources, err := originOf(text)
	if err != nil {
		return e, fmt.Errorf("%s: %w", e.File, err)
	}
	for _, x := range flags.given(&Config{}) {
		sources[x.key] = Setting{From: FromFlag, Name: "--" + x.flag}
	}
	shown := e.Config
	if flags.Socket == "" && env.Socket != "" {
		sources["api.socket"] = Setting{From: FromEnvironment, Name: socketEnv}
	}
	switch {
	case shown.Engine.Host != "":
	case shown.Engine.Name == Containerd:
		shown.Engine.Host = defaultContainerd
	case env.DockerHost != "":
		shown.Engine.Host = env.DockerHost
		sources["engine.host"] = Setting{From: FromEnvironment, Name: dockerHostEnv}
	default:
		shown.Engine.Host = defaultDocker
	}
	if len(shown.GC.Rules) == 0 {
		shown.GC.Rules = gc.DefaultRules()
	}
	e.Settings = settings(shown)
	for i := range e.Settings {
		s := &e.Settings[i]
		from := sources.of(s.Key)
		s.From, s.Line, s.Name = from.From, from.Line, from.Name
	}
	return e, nil
}

// origin has the sources of keys, and the first lines of lists and mappings.
type origin map[string]Setting

// of returns the source of a key's value.
func (o origin) of(key string) Setting {
	if s, ok := o[key]; ok {
		return s
	}
	return Setting{From: FromDefault}
}

// originOf finds the keys of a file. The source of a YAML alias's value is the line of
// the alias.
func originOf(text []byte) (origin, error) {
	o := origin{}
	var all any
	if err := yaml.Unmarshal(text, &all); err != nil {
		return o, err
	}
	f, err := parser.ParseBytes(text, 0)
	if err != nil {
		return o, err
	}
	lines := map[string]int{}
	for _, d := range f.Docs {
		findLines("", d.Body, lines)
	}
	o.add("", all, lines, 0)
	return o, nil
}

// add adds a value of the file and all values below it.
func (o origin) add(key string, value any, lines map[string]int, line int) {
	line = cmp.Or(lines[key], line)
	if key != "" {
		o[key] = Setting{From: FromFile, Line: line}
	}
	switch v := value.(type) {
	case map[string]any:
		for name, below := range v {
			o.add(join(key, name), below, lines, line)
		}
	case []any:
		for i, below := range v {
			o.add(fmt.Sprintf("%s[%d]", key, i), below, lines, line)
		}
	}
}

// findLines finds the line of each key.
func findLines(key string, n ast.Node, lines map[string]int) {
	switch n := n.(type) {
	case *ast.AnchorNode:
		findLines(key, n.Value, lines)
	case *ast.MappingNode:
		for _, kv := range n.Values {
			findLines(key, kv, lines)
		}
	case *ast.MappingValueNode:
		name := join(key, strings.Trim(n.Key.String(), `"'`))
		lines[name] = n.Key.GetToken().Position.Line
		findLines(name, n.Value, lines)
	case *ast.SequenceNode:
		for i, v := range n.Values {
			name := fmt.Sprintf("%s[%d]", key, i)
			lines[name] = v.GetToken().Position.Line
			findLines(name, v, lines)
		}
	}
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}
