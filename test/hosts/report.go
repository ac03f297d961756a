package hosts

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Report is the matrix: what the tests saw on each kind of host.
type Report struct {
	Cells []Column `json:"cells"`
}

// Column is one kind of host.
type Column struct {
	Cell     string             `json:"cell"`
	Host     string             `json:"host"` // what it is, for readers
	Versions map[string]string  `json:"versions"`
	Rows     map[string]Outcome `json:"rows"`
}

// Outcome is the result of one row. At most one field is set; none is a success.
type Outcome struct {
	Impossible string `json:"impossible,omitempty"` // why it cannot work on such a host, and what to do
	Lacks      string `json:"lacks,omitempty"`      // why there is nothing to test on such a host
	Defect     string `json:"defect,omitempty"`
}

// Refused is the row of a kind of host that the agent refuses: its outcome is that of all rows but
// the installation.
const Refused = "refused"

// outcome returns the outcome of a row, and whether it was tested.
func (c Column) outcome(row string) (o Outcome, ran bool) {
	if o, ran = c.Rows[row]; !ran {
		o, ran = c.Rows[Refused]
	}
	return o, ran
}

// versions are the names of Column.Versions, in the page's order.
var versions = []string{"kernel", "systemd", "cgroup", "engine", "image store"}

// ReadReport reads a report. A file that does not exist is an empty report.
func ReadReport(path string) (r Report, err error) {
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read the report of hosts: %w", err)
	}
	return r, nil
}

// Put replaces the columns of cells that ran again. Rows that did not run again stay, and
// order is the order of all cells.
func (r *Report) Put(c Column, order []string) {
	i := slices.IndexFunc(r.Cells, func(old Column) bool { return old.Cell == c.Cell })
	if i < 0 {
		r.Cells = append(r.Cells, c)
	} else {
		rows := r.Cells[i].Rows
		for name, o := range c.Rows {
			rows[name] = o
		}
		c.Rows = rows
		r.Cells[i] = c
	}
	slices.SortFunc(r.Cells, func(a, b Column) int {
		return slices.Index(order, a.Cell) - slices.Index(order, b.Cell)
	})
}

// Write writes the report.
func (r Report) Write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// intro is the part of the page above its tables.
const intro = `# Hosts

<!-- Generated from test/hosts/report.json; see testing.md. -->

This page lists the kinds of hosts on which the Debian package is tested, and the results.
Each host is a whole virtual machine: systemd is its first process, and it has its own
kernel, disk and engine. The machines are emulated and slow, so their configuration gives
sessions more time to boot. [Tests](testing.md#whole-machines) describes how to repeat a test.

`

// Page returns docs/hosts.md. titles are the names of rows in order, and the texts for them.
func (r Report) Page(titles [][2]string) string {
	var b strings.Builder
	b.WriteString(intro)
	if len(r.Cells) == 0 {
		b.WriteString("No result is recorded yet.\n")
		return b.String()
	}
	b.WriteString("| host | " + strings.Join(versions, " | ") + " |\n|---" + strings.Repeat("|---", len(versions)) + "|\n")
	for _, c := range r.Cells {
		fmt.Fprintf(&b, "| %s", c.Host)
		for _, v := range versions {
			fmt.Fprintf(&b, " | %s", c.Versions[v])
		}
		b.WriteString(" |\n")
	}
	b.WriteString("\n| |")
	for _, c := range r.Cells {
		fmt.Fprintf(&b, " %s |", c.Host)
	}
	b.WriteString("\n|---" + strings.Repeat("|---", len(r.Cells)) + "|\n")
	var notes []string // each once
	note := func(text string) int {
		if !slices.Contains(notes, text) {
			notes = append(notes, text)
		}
		return slices.Index(notes, text) + 1
	}
	for _, title := range titles {
		fmt.Fprintf(&b, "| %s |", title[1])
		for _, c := range r.Cells {
			word := "ok"
			switch o, ran := c.outcome(title[0]); {
			case !ran:
				word = "not tested"
			case o.Impossible != "":
				word = fmt.Sprintf("not possible [%d]", note(o.Impossible))
			case o.Lacks != "":
				word = fmt.Sprintf("n/a [%d]", note(o.Lacks))
			case o.Defect != "":
				word = fmt.Sprintf("defect [%d]", note("Defect: "+o.Defect))
			}
			fmt.Fprintf(&b, " %s |", word)
		}
		b.WriteString("\n")
	}
	if len(notes) > 0 {
		b.WriteString("\n")
	}
	for i, text := range notes {
		fmt.Fprintf(&b, "%d. %s\n", i+1, text)
	}
	return b.String()
}
