package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// benchCmd passes everything on to holdfast-bench, which has the experiments.
func (a *app) benchCmd() *cobra.Command {
	return &cobra.Command{
		Use:                "bench NAME",
		Short:              "Measure Holdfast beside its peers on this machine",
		Long:               "Run holdfast-bench, a program of its own that measures Holdfast beside its peers.\nWithout a name it lists the experiments.",
		Example:            "  holdfast bench kill -n 200",
		Args:               cobra.ArbitraryArgs,
		DisableFlagParsing: true, // the flags are holdfast-bench's
		RunE: func(_ *cobra.Command, words []string) error {
			if err := a.deps.Bench(words); err != nil {
				return fmt.Errorf("bench: %w", err)
			}
			return nil
		},
	}
}
