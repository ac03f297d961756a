package restarts

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"holdfast/bench"
)

// Details are the results of the experiment.
type Details struct {
	Rounds  int      `json:"rounds"`
	Rate    float64  `json:"rate"` // own clients per second
	Servers []Server `json:"servers"`
	// Load has the load averages of the last minute, before and after.
	Load []float64 `json:"load"`
}

// Server has the rows of a server.
type Server struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Tool    string `json:"tool,omitempty"`
	Reload  string `json:"reload,omitempty"` // what a reload is; "": there is none
	// Missing is the program that is not installed: then the server did not run.
	Missing string `json:"missing,omitempty"`
	// Error is why the server was not measured to the end.
	Error string `json:"error,omitempty"`
	Rows  []Row  `json:"rows,omitempty"`
}

// Row has the results of one kind of change.
type Row struct {
	Change  string `json:"change"` // restart, reload or kill
	Without Cell   `json:"without"`
	With    Cell   `json:"with"` // with protect
}

// Cell has the results of all changes of one kind.
type Cell struct {
	Clients
	Tool Tool `json:"tool"`
	// Changes are the durations of the commands in milliseconds.
	Changes []float64 `json:"changes_ms"`
}

// Tool is what the load tool counted.
type Tool struct {
	Requests int     `json:"requests"` // answered
	Errors   int     `json:"errors"`
	Longest  float64 `json:"longest_ms"`
}

// add adds a tally: requests, errors and the longest wait.
func (t *Tool) add(tally string) error {
	var requests, errs int
	var longest float64
	if _, err := fmt.Sscan(tally, &requests, &errs, &longest); err != nil {
		return fmt.Errorf("the load tool's tally %q: %w", tally, err)
	}
	t.Requests, t.Errors, t.Longest = t.Requests+requests, t.Errors+errs, max(t.Longest, longest)
	return nil
}

func (c Cell) String() string {
	return fmt.Sprintf("%d of %d connections failed, longest wait %.0f ms, the tool saw %d errors in %d requests",
		c.Failed, c.Asked, c.Longest, c.Tool.Errors, c.Tool.Requests)
}

// result sums the cells.
func (d Details) result() bench.Result {
	r := bench.Result{Name: "restarts", Machine: bench.ThisMachine(""), Details: d,
		Scale: "failed connections without protect ÷ with it, each plus one"}
	without, tool := 0, 0
	for _, s := range d.Servers {
		if s.Missing != "" {
			r.Notes = append(r.Notes, fmt.Sprintf("%s did not run: %s is not installed", s.Name, s.Missing))
		}
		if s.Error != "" {
			r.Failed++
			r.Notes = append(r.Notes, fmt.Sprintf("%s was not measured to the end: %s", s.Name, s.Error))
		}
		for _, row := range s.Rows {
			without += row.Without.Failed
			r.Failed += row.With.Failed
			tool += row.With.Tool.Errors
		}
	}
	r.Score = float64(1+without) / float64(1+r.Failed)
	r.Notes = append(r.Notes,
		fmt.Sprintf("the load tools saw %d errors with protect", tool),
		fmt.Sprintf("load average of the machine: %.1f before, %.1f after", d.Load[0], d.Load[len(d.Load)-1]))
	return r
}

// columns are the cells of the table's rows.
var columns = []string{"server", "change", "without: tool's errors", "connections failed", "longest ms",
	"with: tool's errors", "connections failed", "longest ms"}

// lines are the rows of the table, each with the texts of columns.
func (d Details) lines() (all [][]string) {
	for _, s := range d.Servers {
		if s.Missing != "" {
			all = append(all, []string{s.Name, "not run: " + s.Missing + " is not installed", "", "", "", "", "", ""})
		}
		if s.Error != "" {
			all = append(all, []string{s.Name, "was not measured to the end", "", "", "", "", "", ""})
		}
		for _, row := range s.Rows {
			line := []string{s.Name, map[string]string{restart: "stop, start", reload: "reload: " + s.Reload, kill: "kill -9, start"}[row.Change]}
			for _, c := range []Cell{row.Without, row.With} {
				longest := "–"
				if c.Asked > c.Failed {
					longest = fmt.Sprintf("%.0f", c.Longest)
				}
				line = append(line, fmt.Sprintf("%d of %d", c.Tool.Errors, c.Tool.Requests+c.Tool.Errors), fmt.Sprintf("%d of %d", c.Failed, c.Asked), longest)
			}
			all = append(all, line)
		}
	}
	return all
}

// WriteTable prints the table as text.
func (d Details) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(columns, "\t"))
	for _, l := range d.lines() {
		fmt.Fprintln(t, strings.Join(l, "\t"))
	}
	return t.Flush()
}

// The lines of a page between which WritePage puts the table.
const (
	pageBegin = "<!-- bench restarts: begin -->\n"
	pageEnd   = "<!-- bench restarts: end -->\n"
)

// WritePage replaces the tables in a page with those of a result of Run.
func WritePage(path string, r bench.Result) error {
	d, ok := r.Details.(Details)
	if !ok {
		return fmt.Errorf("write the table: a result of %s has none", r.Name)
	}
	var b bytes.Buffer
	m := r.Machine
	fmt.Fprintf(&b, "%d changes of each kind; %d CPUs (%s), Linux %s; load average %.1f before, %.1f after.\n\n",
		d.Rounds, m.CPUs, m.Model, m.Kernel, d.Load[0], d.Load[len(d.Load)-1])
	markdown(&b, columns, d.lines())
	var versions [][]string
	for _, s := range d.Servers {
		if s.Missing == "" {
			versions = append(versions, []string{s.Name, s.Version, s.Tool})
		}
	}
	b.WriteString("\n")
	markdown(&b, []string{"server", "version", "load tool"}, versions)
	return bench.WritePage(path, pageBegin, pageEnd, b.Bytes())
}

func markdown(b *bytes.Buffer, head []string, rows [][]string) {
	line := func(cells []string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }
	line(head)
	line(slices.Repeat([]string{"---"}, len(head)))
	for _, r := range rows {
		line(r)
	}
}
