package config

import (
	"context"

	"holdfast/internal/platform/strictyaml"
)

// MaxSize is the largest configuration file, in bytes.
const MaxSize = strictyaml.MaxSize

// parse reads YAML over c. Unknown keys and duplicates are refused; the error names
// line and column.
func parse(ctx context.Context, text []byte, c *Config) error {
	return strictyaml.Decode(ctx, text, c, "docs/configuration.md")
}
