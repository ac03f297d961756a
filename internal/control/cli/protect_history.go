package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/internal/hosts/protect"
	"holdfast/internal/hosts/protect/history"
)

func (a *app) protectHistoryCmd() *cobra.Command {
	limit := 20
	cmd := &cobra.Command{
		Use:     "history",
		Short:   "Show protected restarts since the boot",
		Long:    "Show the protected restarts since this host's boot, the newest first: ports,\nbackend, the number of waiting connections, and their waits. Of the command only\nthe program is kept. A killed protect is not recorded.",
		Example: "  holdfast protect history\n  holdfast protect history --json --limit 0",
		PreRunE: func(cmd *cobra.Command, _ []string) error { return atLeast(cmd, "limit", limit, 0) },
		RunE: func(*cobra.Command, []string) error {
			h, err := history.Read(protect.LockDir)
			if err != nil {
				return err
			}
			slices.Reverse(h.Holds)
			if limit > 0 {
				h.Holds = h.Holds[:min(limit, len(h.Holds))]
			}
			if len(h.Holds) == 0 {
				a.ui.note("there was no hold since the boot")
				if !a.ui.json {
					return nil
				}
			}
			return a.ui.result(h, func(w io.Writer) { writeHolds(w, h.Holds) })
		},
	}
	cmd.Flags().IntVar(&limit, "limit", limit, "at most that many, the newest; 0: all that are kept")
	return cmd
}

func writeHolds(w io.Writer, holds []history.Hold) {
	fmt.Fprintln(w, "ENDED\tPORTS\tPROGRAM\tBACKEND\tTOOK\tHELD\tP50\tP90\tP99\tLONGEST WAIT\tEND")
	for _, h := range holds {
		var ports []string
		for _, p := range h.Ports {
			ports = append(ports, strconv.Itoa(int(p)))
		}
		end := "ok"
		if h.Reason != protect.NewListens {
			end = string(h.Reason)
		}
		if h.ExitCode != 0 {
			end += fmt.Sprintf(", exit code %d", h.ExitCode)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", h.At.Local().Format("01-02 15:04:05"), strings.Join(ports, ","),
			dash(clean(h.Program)), h.Backend, inMs(h.Took), h.Held, waits(h.Waits), inMs(h.Longest), end)
	}
}

// waits formats quantiles as three columns.
func waits(q *protect.Quantiles) string {
	if q == nil {
		return "-\t-\t-"
	}
	return inMs(q.P50) + "\t" + inMs(q.P90) + "\t" + inMs(q.P99)
}
