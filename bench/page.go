package bench

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"holdfast/internal/platform/atomicfile"
)

// WritePage replaces the text between the lines begin and end of a page with a table.
// begin and end include their newline.
func WritePage(path, begin, end string, table []byte) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	before, rest, ok1 := bytes.Cut(page, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok1 || !ok2 {
		return fmt.Errorf("write the table: %s has no lines %q and %q", path, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	text := slices.Concat(before, []byte(begin), []byte("\n"), table, []byte("\n"), []byte(end), after)
	if err := atomicfile.WriteNoSync(path, text, 0o644); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}
