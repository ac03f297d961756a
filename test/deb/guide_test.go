package deb

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast/test/lab"
)

// block has commands of a page of the guide, and their documented output.
type block struct {
	line     int // of the commands
	commands string
	shown    []string
}

// blocks returns the ```sh blocks of a page, each with the ```text block that follows it.
func blocks(path string) (all []block, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	kind, n := "", 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		n++
		text := lines.Text()
		fence, is := strings.CutPrefix(text, "```")
		switch {
		case is && kind == "":
			if kind = "other"; fence != "" {
				kind = fence
			}
			if kind == "sh" {
				all = append(all, block{line: n + 1})
			}
		case is:
			kind = ""
		case kind == "sh":
			all[len(all)-1].commands += text + "\n"
		case kind == "text" && len(all) > 0 && strings.TrimSpace(text) != "":
			b := &all[len(all)-1]
			b.shown = append(b.shown, text)
		}
	}
	return all, nil
}

// varies matches the parts of words that differ between runs: hexadecimal ids, addresses,
// numbers with a unit or a point, and words that are a number.
var varies = regexp.MustCompile(`…|[0-9a-f]{12}|[0-9]+(\.[0-9]+){3}(:[0-9]+)?|[0-9]+\.[0-9]+[a-zA-Zµ%]*|[0-9]+(ms|µs|s|m|h|d|MiB|KiB|GiB|B|%)\b|^[0-9]+$`)

// pattern returns the pattern for output that the page shows as this line: the same words, with
// any numbers and spaces. "…" matches any text.
func pattern(shown string) *regexp.Regexp {
	words := strings.Fields(shown)
	for i, w := range words {
		var p strings.Builder
		at := 0
		for _, m := range varies.FindAllStringIndex(w, -1) {
			p.WriteString(regexp.QuoteMeta(w[at:m[0]]))
			switch what := w[m[0]:m[1]]; {
			case what == "…":
				p.WriteString(".*")
			case len(what) == 12 && !strings.Contains(what, "."):
				p.WriteString("[0-9a-f]{12}")
			default:
				p.WriteString(`[0-9][0-9.:]*[a-zA-Zµ%]*`)
			}
			at = m[1]
		}
		words[i] = p.String() + regexp.QuoteMeta(w[at:])
	}
	return regexp.MustCompile(`^\s*` + strings.Join(words, `\s+`) + `\s*$`)
}

// missing returns the first line of a page that the output lacks, in the page's order, or "". On a
// busy host a time may have the mark of a slow one.
func missing(shown []string, output string) string {
	lines := strings.Split(output, "\n")
	for _, s := range shown {
		p, found := pattern(s), false
		for len(lines) > 0 && !found {
			found = p.MatchString(strings.ReplaceAll(lines[0], " ! ", " ")) || sameColumns(s, lines[0])
			lines = lines[1:]
		}
		if !found {
			return s
		}
	}
	return ""
}

// sameColumns reports whether two lines are the header of the same table. The order of its
// columns may depend on the order of events, such as the end of a hold and of its command.
func sameColumns(shown, printed string) bool {
	a, b := strings.Fields(shown), strings.Fields(printed)
	slices.Sort(a)
	slices.Sort(b)
	return len(a) > 1 && shown == strings.ToUpper(shown) && !strings.ContainsAny(shown, "0123456789") && slices.Equal(a, b)
}

func TestShownAndPrinted(t *testing.T) {
	for _, c := range []struct {
		shown, printed string
		same           bool
	}{
		{"alice  ready  3s  172.17.0.2:8080  0709715ce121", "alice ready 450ms 172.17.0.13:8080 18ea84d3286c", true},
		{"alice  ready", "alice  leaving", false},
		{"released=1 left=0 took=…", "released=1 left=0 took=3ms", true},
		{"released=1 left=0 took=…", "released=1 left=1 took=3ms", false},
		{"ci/app:5", "ci/app:4", false},
		{"errors: none", "errors: 3", false},
		{"extract 1.015MiB in 0.763s (1.331MiB/s)", "extract 20.1MiB in 1.5s (13MiB/s)", true},
		{"kill  1  1.1ms", "kill                  1  0.9ms", true},
		{"web  cached  123ms  1.38s  2s", "web  cached  138ms  12.16s !  14.30s", true},
		{"START  RELEASE  COMMAND", "START COMMAND RELEASE", true},
		{"START  RELEASE  COMMAND", "START COMMAND DRAIN", false},
		{"Start  release", "release Start", false},
		{"disk: 40.3% used…", "disk: 8.1% used, 3GiB free", true},
	} {
		if got := missing([]string{c.shown}, c.printed) == ""; got != c.same {
			t.Errorf("%q and %q: %v, want %v", c.shown, c.printed, got, c.same)
		}
	}
}

// Every command of every page of the guide runs, on a fresh machine for each page, and prints
// the documented output.
func TestGuide(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: machines and engines take their time, and root")
	}
	pages, err := filepath.Glob("../../docs/guide/*.md")
	if err != nil || len(pages) < 6 {
		t.Fatalf("pages %v, %v", pages, err)
	}
	busybox, err := lab.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		all, err := blocks(page)
		if err != nil {
			t.Fatal(err)
		}
		if name == "README" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(all) < 3 {
				t.Fatalf("%d blocks of commands", len(all))
			}
			d := newDebian(t, busybox)
			d.hasRegistry()
			for _, b := range all {
				out, err := d.Command(t.Context(), b.commands).CombinedOutput()
				if err != nil {
					t.Fatalf("%s:%d: %v\n%s\n%s", page, b.line, err, b.commands, out)
				}
				if s := missing(b.shown, string(out)); s != "" {
					t.Errorf("%s:%d: the page shows\n\t%s\nand printed was\n%s", page, b.line, s, out)
				}
			}
		})
	}
}

// hasRegistry makes busybox available to the machine's engine by its usual name, from a registry
// in place of Docker Hub, and stops the engine.
func (d debian) hasRegistry() {
	d.t.Helper()
	d.write("etc/registry.yml", `version: 0.1
log: {level: error}
storage: {filesystem: {rootdirectory: /var/lib/registry}}
http: {addr: "127.0.0.1:5000"}
`)
	d.write("etc/docker/daemon.json", fmt.Sprintf(`{"registry-mirrors": [%q]}`, "http://127.0.0.1:5000"))
	d.Run(`systemd-run --quiet --unit=registry docker-registry serve /etc/registry.yml
docker tag busybox 127.0.0.1:5000/library/busybox
until docker push -q 127.0.0.1:5000/library/busybox; do sleep 0.1; done
docker rmi -f 127.0.0.1:5000/library/busybox busybox
systemctl stop docker.socket docker containerd`)
}
