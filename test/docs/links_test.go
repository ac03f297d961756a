package docs

import (
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const top = "../.."

// pages returns the project's Markdown files without their code blocks, by their path below the top.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := files(t, ".md")
	for name, text := range all {
		all[name] = prose(text)
	}
	if len(all) < 40 {
		t.Fatalf("only %d pages were found", len(all))
	}
	return all
}

// files returns the project's files whose names end so, by their path below the top.
func files(t *testing.T, ends ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (name == "var" || name == "dist" || name == "bin" || d.Name() == "vendor" || d.Name() == "testdata" || name != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case !d.IsDir() && slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(name, end) }):
			text, err := os.ReadFile(path)
			all[name] = string(text)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// prose returns a page without its code blocks, which have no links and no headings.
func prose(text string) string {
	var out strings.Builder
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		} else if !fenced {
			out.WriteString(line)
		}
	}
	return out.String()
}

var (
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	inText  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	quoted  = regexp.MustCompile("`([^`\n]+)`")
)

// anchors returns the anchors of a page's headings, as Markdown viewers generate them: lower case,
// hyphens for spaces, no other character except letters and digits. The second one of the same
// name ends with -1.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		title := inText.ReplaceAllString(m[1], "$1")
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, title)
		for n := name; ; n += "-1" {
			if !all[n] {
				all[n] = true
				break
			}
		}
	}
	return all
}

func TestAnchors(t *testing.T) {
	got := anchors("# The API\n## `holdfast pull`, and why?\n## [Spin-up](x.md): what it is\n## The API\n")
	for _, want := range []string{"the-api", "holdfast-pull-and-why", "spin-up-what-it-is", "the-api-1"} {
		if !got[want] {
			t.Errorf("no %s in %v", want, got)
		}
	}
}

// Every link within the project leads to an existing file and heading.
func TestLinks(t *testing.T) {
	all, checked := pages(t), 0
	for page, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			u, err := url.Parse(m[1])
			if err != nil {
				t.Errorf("%s: %s: %v", page, m[1], err)
				continue
			}
			if u.Scheme != "" || u.Host != "" {
				continue // an external link
			}
			checked++
			to := page
			if u.Path != "" {
				to = filepath.Join(filepath.Dir(page), u.Path)
			}
			if _, err := os.Stat(filepath.Join(top, to)); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			} else if u.Fragment != "" && !anchors(all[to])[u.Fragment] {
				t.Errorf("%s links to %s, and %s has no such heading", page, m[1], to)
			}
		}
	}
	if checked < 150 {
		t.Errorf("only %d links were checked", checked)
	}
}

// Every page of docs/ can be reached from the README by links.
func TestPagesAreReached(t *testing.T) {
	all := pages(t)
	reached := map[string]bool{"README.md": true}
	for queue := []string{"README.md"}; len(queue) > 0; queue = queue[1:] {
		for _, m := range link.FindAllStringSubmatch(all[queue[0]], -1) {
			path, _, _ := strings.Cut(m[1], "#")
			to := filepath.Join(filepath.Dir(queue[0]), path)
			if _, is := all[to]; is && !reached[to] {
				reached[to] = true
				queue = append(queue, to)
			}
		}
	}
	for page := range all {
		if strings.HasPrefix(page, "docs/") && !reached[page] {
			t.Errorf("no way leads from the README to %s", page)
		}
	}
}

// The files that CONTRIBUTING names exist, with the identifiers that it mentions.
func TestContributingNamesFiles(t *testing.T) {
	text := pages(t)["CONTRIBUTING.md"]
	named := 0
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(m[1], "/") || strings.ContainsAny(m[1], " …") || strings.HasPrefix(m[1], "/") {
			continue
		}
		named++
		if _, err := os.Stat(filepath.Join(top, m[1])); err != nil {
			t.Errorf("CONTRIBUTING.md names %s: %v", m[1], err)
		}
	}
	if named < 25 {
		t.Errorf("only %d files were found in CONTRIBUTING.md", named)
	}
	for _, m := range regexp.MustCompile("`([A-Z][A-Za-z]+)` of\\s+`([^`]+)`").FindAllStringSubmatch(text, -1) {
		source, err := os.ReadFile(filepath.Join(top, m[2]))
		if err != nil || !regexp.MustCompile(`(?m)^(func|type) `+m[1]+`\b`).Match(source) {
			t.Errorf("CONTRIBUTING.md says that %s has %s: %v", m[2], m[1], err)
		}
	}
}

// docs/security.md lists exactly the capabilities of the units.
func TestSecurityListsCapabilities(t *testing.T) {
	listed := map[string]map[string]bool{"holdfast": {}, "holdfast-gc": {}, "holdfast-protect": {}, "holdfast-drain": {}}
	for line := range strings.Lines(pages(t)["docs/security.md"]) {
		cells := strings.Split(line, "|")
		if len(cells) != 7 {
			continue
		}
		for i, unit := range []string{"holdfast", "holdfast-gc", "holdfast-protect"} {
			for name := range strings.SplitSeq(cells[1], ",") {
				if strings.TrimSpace(cells[2+i]) == "✓" {
					listed[unit]["CAP_"+strings.TrimSpace(name)] = true
				}
			}
		}
	}
	for unit, want := range listed {
		text, err := os.ReadFile(filepath.Join(top, "packaging/systemd", unit+".service"))
		if err != nil {
			t.Fatal(err)
		}
		has := map[string]bool{}
		for _, m := range regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindAllStringSubmatch(string(text), -1) {
			for _, name := range strings.Fields(m[1]) {
				has[name] = true
			}
		}
		if !maps.Equal(has, want) {
			t.Errorf("%s.service has %v, and docs/security.md lists %v", unit, slices.Sorted(maps.Keys(has)), slices.Sorted(maps.Keys(want)))
		}
	}
}
