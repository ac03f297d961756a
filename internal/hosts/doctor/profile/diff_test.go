package profile

import (
	"bytes"
	"encoding/xml"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// On the slow host the logger of the same image, with another id and name, makes the
// kernel work, and the web server gets less done.
func TestDiff(t *testing.T) {
	before := recording(Sample{web, working, 1000}, Sample{logger, advising, 20}, Sample{host, nil, 7})
	other := logger
	other.Container, other.ContainerID = "log-9", strings.Repeat("ef", 32)
	second := other
	second.Container, second.ContainerID = "log-10", strings.Repeat("12", 32)
	after := recording(Sample{web, working, 800}, Sample{other, advising, 1100}, Sample{second, []int{4, 3, 2}, 500}, Sample{host, nil, 8})
	// The second recording is twice as long, at half the rate, on a host twice as large.
	after.Meta.Seconds, after.Meta.Hz, after.Meta.CPUs, after.Meta.Kernel = 20, 50, 4, "6.18.0"
	for i := range after.Samples {
		after.Samples[i].Count *= 2
	}
	d := Compare(before, after)
	c := d.Containers[0]
	if c.Container != "image logger:2" || c.Containers != [2]int{1, 2} || !near(c.Good, 0.01) || !near(c.Bad, 0.8) || !near(c.Kernel, 0.79) || c.Chance {
		t.Errorf("%+v", c)
	}
	last := d.Containers[len(d.Containers)-1]
	if last.Container != "web-1" || !near(last.Good, 0.5) || !near(last.Bad, 0.4) || last.Chance {
		t.Errorf("%+v", last)
	}
	if k := d.Kernel[0]; k.Container != "image logger:2" || !slices.Equal(k.Path, []string{"ksys_fadvise64_64", "generic_fadvise"}) || !near(k.Grew, 0.79) {
		t.Errorf("%+v", k)
	}
	if f := d.Functions[0]; f.Function != "generic_fadvise" || !near(f.Grew, 0.54) {
		t.Errorf("%+v", f)
	}
	for _, c := range d.Containers {
		if c.Container == HostLabel && !c.Chance {
			t.Errorf("7 and 8 samples differ significantly: %+v", c)
		}
	}
	notes := strings.Join(d.Notes, "\n")
	for _, want := range []string{"6.1.0 and 6.18.0", "2 and 4 CPUs", "good recording: a gap"} {
		if !strings.Contains(notes, want) {
			t.Errorf("no note with %q in:\n%s", want, notes)
		}
	}
	top := d.Top(2)
	if len(top.Containers) != 2 || top.Containers[1].Container != "web-1" || len(d.Containers) != 3 {
		t.Errorf("%+v", top.Containers)
	}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestNotes(t *testing.T) {
	a, b := recording(Sample{web, working, 10}), recording(Sample{web, working, 1000})
	b.Meta.Container, b.Meta.Dropped, b.Meta.Gaps = "web-1", 100, nil
	notes := strings.Join(Compare(a, b).Notes, "\n")
	for _, want := range []string{"has only 10 samples", "one recording is of the whole host, the other of container web-1", "the bad recording has lost 101"} {
		if !strings.Contains(notes, want) {
			t.Errorf("no note with %q in:\n%s", want, notes)
		}
	}
	if strings.Contains(notes, "kernels") {
		t.Errorf("a note about equal kernels:\n%s", notes)
	}
}

// The page is self-contained and has a policy that says so. Names of functions and
// containers are untrusted and stay text.
func TestPage(t *testing.T) {
	evil := web
	evil.Container, evil.Image = `"><script src=https://evil.example></script>`, ""
	deep := make([]int, 200)
	deep[0] = 7
	after := recording(Sample{web, working, 800}, Sample{logger, advising, 1000}, Sample{evil, []int{7, 6, 0}, 100}, Sample{evil, deep, 50})
	after.Meta.Host = "<h1>"
	var b bytes.Buffer
	if err := Compare(recording(Sample{web, working, 1000}, Sample{logger, advising, 10}), after).WritePage(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, bad := range []string{"<script", "<b>&", "src=\"", "href=", "url(", "@import", "<h1><", " style=", "onload"} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if !strings.Contains(text, "default-src &#39;none&#39;; style-src &#39;sha256-") && !strings.Contains(text, "default-src 'none'; style-src 'sha256-") {
		t.Error("the page's policy does not forbid loading")
	}
	if n := strings.Count(text, "<svg"); n != 3+3+2 { // the host, the logger, and the container that is new
		t.Errorf("%d pictures", n)
	}
	for _, m := range regexp.MustCompile(`(?s)<section.*?</section>`).FindAllString(text, -1) {
		pictures := strings.Count(m, "<svg")
		if pictures+strings.Count(m, "nothing ran") != 3 || strings.Count(m, `role="img" aria-label="`) != pictures || strings.Count(m, "<caption>") != 1 || !strings.Contains(m, `scope="row"`) {
			t.Errorf("a section is incomplete:\n%.400s", m)
		}
	}
	for _, want := range []string{`class="r4"`, `class="b`, "ksys_fadvise64_64 › generic_fadvise", `<th scope="row">log-1</th>`, "very deep ones are left out"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing from the page", want)
		}
	}
	for _, svg := range regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(text, -1) {
		boxesInside(t, svg)
	}
}

// boxesInside checks that a picture is well formed and that its boxes lie inside it.
func boxesInside(t *testing.T, svg string) {
	t.Helper()
	var p struct {
		ViewBox string `xml:"viewBox,attr"`
		G       []struct {
			Title string `xml:"title"`
			Rect  struct {
				X float64 `xml:"x,attr"`
				Y float64 `xml:"y,attr"`
				W float64 `xml:"width,attr"`
			} `xml:"rect"`
		} `xml:"g"`
	}
	dec := xml.NewDecoder(strings.NewReader(svg))
	dec.Entity = xml.HTMLEntity
	if err := dec.Decode(&p); err != nil && err != io.EOF {
		t.Errorf("%v: %.300s", err, svg)
		return
	}
	f := strings.Fields(p.ViewBox)
	width, height := map[string]float64{"700": 700, "1400": 1400}[f[2]], f[3]
	if len(p.G) == 0 || width == 0 || height == "0" {
		t.Errorf("a picture of %q with %d boxes", p.ViewBox, len(p.G))
	}
	for _, g := range p.G {
		if g.Rect.X < 0 || g.Rect.Y < 0 || g.Rect.W <= 0 || g.Rect.X+g.Rect.W > width+0.1 || !strings.Contains(g.Title, "of the host") {
			t.Errorf("%+v", g)
		}
	}
}
