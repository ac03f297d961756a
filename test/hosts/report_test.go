package hosts

import (
	"strings"
	"testing"
)

// A row that did not run again keeps its result, and the page numbers each reason once.
func TestReport(t *testing.T) {
	var r Report
	order := []string{"first", "second"}
	r.Put(Column{Cell: "second", Host: "Second", Rows: map[string]Outcome{"a": {Impossible: "no engine; hint: install one"}, Refused: {Impossible: "no engine; hint: install one"}, "c": {Lacks: "it has no ports"}}}, order)
	r.Put(Column{Cell: "first", Host: "First", Versions: map[string]string{"kernel": "6.1"}, Rows: map[string]Outcome{"a": {}, "b": {Defect: "it fails"}}}, order)
	r.Put(Column{Cell: "first", Host: "First", Versions: map[string]string{"kernel": "6.2"}, Rows: map[string]Outcome{"a": {}}}, order)
	page := r.Page([][2]string{{"a", "Row a"}, {"b", "Row b"}, {"c", "Row c"}})
	for _, want := range []string{
		"| First | 6.2 |", "| | First | Second |",
		"| Row a | ok | not possible [1] |", "| Row b | defect [2] | not possible [1] |", "| Row c | not tested | n/a [3] |",
		"\n1. no engine; hint: install one\n2. Defect: it fails\n3. it has no ports\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
}
