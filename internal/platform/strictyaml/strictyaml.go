// Package strictyaml reads YAML that people write. It refuses unknown and duplicate
// keys. An error is one line with the position and the problem, and has a hint.
package strictyaml

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"holdfast"
)

// MaxSize is the largest text that is read, in bytes.
const MaxSize = 1 << 20

// Decode reads text over v. A text without keys leaves v as it is. page is the
// documentation of the keys, for the hint.
func Decode[T any](ctx context.Context, text []byte, v *T, page string) error {
	if len(text) > MaxSize {
		return fmt.Errorf("the file has %d bytes, at most %d are read", len(text), MaxSize)
	}
	before := *v
	err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).DecodeContext(ctx, v)
	if errors.Is(err, io.EOF) { // the text has only comments, and the decoder has emptied v
		*v = before
		return nil
	}
	if err != nil {
		return syntaxError(err, page)
	}
	return nil
}

// syntaxError is the library's error as one line: position and message, without the
// excerpt of the file.
func syntaxError(err error, page string) error {
	var y yaml.Error
	if !errors.As(err, &y) {
		return err
	}
	msg := message(y)
	if t := y.GetToken(); t != nil && t.Position != nil {
		msg = fmt.Sprintf("line %d, column %d: %s", t.Position.Line, t.Position.Column, msg)
	}
	hint := "see " + page + " for every key"
	if strings.Contains(msg, "unknown field") {
		hint = "check the spelling and the indentation; " + page + " has every key"
	}
	return holdfast.WithHint(errors.New(msg), hint)
}

// message is the library's message, unless that shows Go types.
func message(err yaml.Error) string {
	var (
		typed *yaml.TypeError
		large *yaml.OverflowError
	)
	switch {
	case errors.As(err, &typed):
		return "this wants " + wanted(typed.DstType)
	case errors.As(err, &large):
		return large.SrcNum + " is too large a number"
	}
	return err.GetMessage()
}

func wanted(t reflect.Type) string {
	if t == reflect.TypeFor[time.Duration]() {
		return "a time such as 30s"
	}
	switch t.Kind() {
	case reflect.String:
		return "a text; put it in quotes"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "keys with values"
	}
	return "a number"
}
