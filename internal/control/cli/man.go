//go:build manpages

package cli

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// EpochEnv is the time in generated pages, in seconds since 1970, which makes two
// builds of one source identical (reproducible-builds.org).
const EpochEnv = "SOURCE_DATE_EPOCH"

// addManCmd adds the command that writes the manual pages. Only the programs that a release
// is made with have it, because its Markdown and YAML libraries are 0.6 MB of machine code.
func (a *app) addManCmd(root *cobra.Command) {
	group(root, &cobra.Command{
		Use: "man DIR", Hidden: true,
		Short: "Write manual pages of all commands",
		Long: "Write a manual page (section 1) of each command into an existing directory. Packages contain these pages.\n" +
			"With $" + EpochEnv + " the pages have that time instead of today.",
		Example: "  holdfast man ~/.local/share/man/man1",
		Args:    args(1, 1, "one directory"),
		RunE: func(cmd *cobra.Command, words []string) error {
			at, err := pageTime(a.deps.Now(), os.Getenv(EpochEnv))
			if err != nil {
				return usage(cmd, err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // it contains the date
			head := &doc.GenManHeader{Section: "1", Date: &at, Source: "holdfast " + a.deps.Version.Version, Manual: "Holdfast"}
			if err := doc.GenManTree(root, head, words[0]); err != nil {
				return fmt.Errorf("writing manual pages: %w", err)
			}
			return nil
		},
	})
}

// pageTime returns the time for the pages.
func pageTime(now time.Time, epoch string) (time.Time, error) {
	if epoch == "" {
		return now, nil
	}
	s, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || s < 0 {
		return now, errors.New("$" + EpochEnv + " is not a number of seconds")
	}
	return time.Unix(s, 0).UTC(), nil
}
