package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"holdfast"
)

// SetSeccomp returns the text of a configuration with the file of a seccomp profile in
// a template, and whether it differs from the given text. Everything else stays as it
// is, with comments. It refuses an unsafe change: a template on one line, or one with
// another profile.
func SetSeccomp(ctx context.Context, text []byte, template, file string) ([]byte, bool, error) {
	var before Config
	if err := parse(ctx, text, &before); err != nil {
		return nil, false, err
	}
	i := slices.IndexFunc(before.Templates, func(t Template) bool { return t.Name == template })
	switch {
	case i < 0:
		return nil, false, fmt.Errorf("template %q: %w", template, holdfast.ErrNotFound)
	case before.Templates[i].Seccomp == file:
		return text, false, nil
	case before.Templates[i].Seccomp != "":
		return nil, false, fmt.Errorf("template %s already has the seccomp profile %s", template, before.Templates[i].Seccomp)
	}
	line, indent, err := afterKey(text, i)
	if err != nil {
		return nil, false, holdfast.WithHint(fmt.Errorf("template %s: %w", template, err), "add the line by hand: seccomp: "+file)
	}
	value, err := yaml.Marshal(file) // quoted if necessary
	if err != nil {
		return nil, false, err
	}
	lines := slices.Collect(bytes.Lines(text))
	if last := len(lines); line == last && !bytes.HasSuffix(lines[last-1], []byte("\n")) {
		lines[last-1] = append(bytes.Clone(lines[last-1]), '\n')
	}
	added := []byte(strings.Repeat(" ", indent) + "seccomp: " + strings.TrimSpace(string(value)) + "\n")
	out := bytes.Join(slices.Insert(lines, line, added), nil)
	var after Config
	if err := parse(ctx, out, &after); err != nil || i >= len(after.Templates) || after.Templates[i].Seccomp != file {
		return nil, false, holdfast.WithHint(fmt.Errorf("template %s cannot be changed safely (%w)", template, err), "add the line by hand: seccomp: "+file)
	}
	return out, true, nil
}

// afterKey returns the line (from 1) after which another key of a template can be
// inserted, and its indentation: after a key with its value on the same line.
func afterKey(text []byte, template int) (line, indent int, err error) {
	f, err := parser.ParseBytes(text, 0)
	if err != nil {
		return 0, 0, err
	}
	p, err := yaml.PathString(fmt.Sprintf("$.templates[%d]", template))
	if err != nil {
		return 0, 0, err
	}
	node, err := p.FilterFile(f)
	if err != nil {
		return 0, 0, err
	}
	m, ok := node.(*ast.MappingNode)
	if !ok || m.IsFlowStyle {
		return 0, 0, errors.New("it is written on one line")
	}
	for _, kv := range m.Values {
		switch kv.Value.(type) {
		case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		default:
			continue
		}
		k, v := kv.Key.GetToken().Position, kv.Value.GetToken().Position
		if k.Line == v.Line {
			return k.Line, k.Column - 1, nil
		}
	}
	return 0, 0, errors.New("it has no key with a plain value")
}
