package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/goccy/go-yaml"

	"holdfast"
)

// MaxSize is the largest configuration that is read, in bytes.
const MaxSize = 1 << 20

// parse reads YAML over c. Unknown keys and duplicates are refused; the error
// names line and column.
func parse(ctx context.Context, text []byte, c *Config) error {
	if len(text) > MaxSize {
		return fmt.Errorf("the file has %d bytes, at most %d are read", len(text), MaxSize)
	}
	err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).DecodeContext(ctx, c)
	if err == nil || errors.Is(err, io.EOF) { // an empty file is the defaults
		return nil
	}
	return syntaxError(err)
}

// syntaxError is the library's error on one line, with its excerpt of the file
// left out: position and message say it all, and an error is one line.
func syntaxError(err error) error {
	var y yaml.Error
	if !errors.As(err, &y) {
		return err
	}
	msg := y.GetMessage()
	if t := y.GetToken(); t != nil && t.Position != nil {
		msg = fmt.Sprintf("line %d, column %d: %s", t.Position.Line, t.Position.Column, msg)
	}
	hint := "see docs/configuration.md for every key"
	if strings.Contains(msg, "unknown field") {
		hint = "check the spelling and the indentation; docs/configuration.md has every key"
	}
	return holdfast.WithHint(errors.New(msg), hint)
}
