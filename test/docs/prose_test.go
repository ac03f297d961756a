package docs

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// maxWords is the longest a sentence may be in documentation and help.
const maxWords = 40

var (
	// persons are the pronouns that stand for a component that has a name.
	persons = regexp.MustCompile(`(?i)\b(who|whom|whoever|somebody|nobody|anybody|everybody)\b`)
	// metaphors were names of this project for things that have a name in the field.
	metaphors = regexp.MustCompile(`(?i)\b(disinherit|graves?|heirs?|leavers?|condemn(s|ed)?|sleepers|stillness)\b`)
	// code is a span in code font; target is the target of a link.
	code    = regexp.MustCompile("`[^`]*`")
	target  = regexp.MustCompile(`\]\([^)]*\)`)
	comment = regexp.MustCompile(`(?s)<!--.*?-->`)
	// stop ends a sentence.
	block = regexp.MustCompile(`(?m)^    .*$`) // indented code
	stop  = regexp.MustCompile(`[.!?:;](\s|$)|\n\s*\n|\n\s*([-*|#]|\d+\.)\s|\|`)
)

// Texts name the component that acts.
func TestTextsNameTheComponent(t *testing.T) {
	for path, text := range proseOf(t) {
		complain(t, path, text)
	}
	n := 0
	for path, texts := range sourceTexts(t) {
		for line, text := range texts {
			n++
			complain(t, path+":"+strconv.Itoa(line), code.ReplaceAllString(text, "CODE"))
		}
	}
	if n < 10000 {
		t.Errorf("only %d comments and strings were found", n)
	}
}

func complain(t *testing.T, where, text string) {
	t.Helper()
	for _, r := range []*regexp.Regexp{persons, metaphors} {
		for _, at := range r.FindAllStringIndex(text, -1) {
			around := text[max(0, at[0]-40):min(len(text), at[1]+40)]
			t.Errorf("%s: %q in %q", where, text[at[0]:at[1]], strings.Join(strings.Fields(around), " "))
		}
	}
}

// proseOf is the text of all pages, without code, comments and the targets of links.
func proseOf(t *testing.T) map[string]string {
	t.Helper()
	all := pages(t)
	for path, text := range all {
		text = code.ReplaceAllString(block.ReplaceAllString(text, ""), "CODE")
		all[path] = target.ReplaceAllString(comment.ReplaceAllString(text, ""), "]")
	}
	return all
}

// sourceTexts are the comments, and the strings of more than one word, of all Go files
// that are not generated, by line.
func sourceTexts(t *testing.T) map[string]map[int]string {
	t.Helper()
	all := map[string]map[int]string{}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != top && (strings.HasPrefix(name, ".") || name == "testdata" || name == "var") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || filepath.Base(path) == "prose_test.go" {
			return nil
		}
		src, err := os.ReadFile(path)
		if err == nil && !strings.HasPrefix(string(src), "// Code generated") {
			all[path] = texts(src)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func texts(src []byte) map[int]string {
	file := token.NewFileSet().AddFile("", 1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	out := map[int]string{}
	for {
		pos, tok, lit := s.Scan()
		switch {
		case tok == token.EOF:
			return out
		case tok == token.COMMENT && !strings.HasPrefix(lit, "//go:"), tok == token.STRING && strings.Contains(lit, " "):
			out[file.Line(pos)] += lit
		}
	}
}

// Sentences of the documentation and of the help are short.
func TestSentencesAreShort(t *testing.T) {
	texts := proseOf(t)
	help, err := filepath.Glob(top + "/internal/control/cli/testdata/help/*.txt")
	if err != nil || len(help) < 20 {
		t.Fatalf("%d help texts: %v", len(help), err)
	}
	for _, path := range help {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[path] = strings.ReplaceAll(string(text), "\n", "\n\n")
	}
	for path, text := range texts {
		for _, sentence := range stop.Split(text, -1) {
			if words := strings.Fields(sentence); len(words) > maxWords {
				t.Errorf("%s: %d words: %s", path, len(words), strings.Join(words, " "))
			}
		}
	}
}

// TestProseIsHeld shows that the checks above can fail.
func TestProseIsHeld(t *testing.T) {
	if !persons.MatchString("it waits for nobody") || persons.MatchString("the agent waits; whole") {
		t.Error("persons are not found")
	}
	if got := texts([]byte("package x // who\nvar s = \"a b\"")); got[1] != "// who" || got[2] != `"a b"` {
		t.Errorf("texts: %v", got)
	}
}
