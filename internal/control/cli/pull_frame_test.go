package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"holdfast"
	"holdfast/internal/hosts/spinup"
)

// rowAfter returns an image after these figures, one second apart.
func rowAfter(image string, figures ...spinup.Pull) *pullRow {
	r := &pullRow{image: image}
	at := time.Unix(1000, 0)
	for _, p := range figures {
		r.take(at, p)
		at = at.Add(time.Second)
	}
	return r
}

func pullOf(took time.Duration, layers ...spinup.Layer) spinup.Pull {
	return spinup.Pull{Took: holdfast.Millis(took), Layers: layers}
}

const mib = 1 << 20

// Each state shows its progress, rate, remaining time, and what it waits for.
func TestPullPicture(t *testing.T) {
	row := rowAfter("app:1",
		pullOf(time.Second,
			spinup.Layer{ID: "aaaaaaaaaaaa", State: spinup.Present},
			spinup.Layer{ID: "bbbbbbbbbbbb", State: spinup.Downloading, Size: 10 * mib, Position: 1 * mib},
			spinup.Layer{ID: "cccccccccccc", State: spinup.Downloading, Size: 40 * mib, Position: 4 * mib},
			spinup.Layer{ID: "dddddddddddd", State: spinup.Waiting, Size: 8 * mib},
			spinup.Layer{ID: "eeeeeeeeeeee", State: spinup.Announced, Size: 2 * mib}),
		pullOf(2*time.Second,
			spinup.Layer{ID: "aaaaaaaaaaaa", State: spinup.Present},
			spinup.Layer{ID: "bbbbbbbbbbbb", State: spinup.Extracting, Size: 10 * mib, Position: 5 * mib},
			spinup.Layer{ID: "cccccccccccc", State: spinup.Downloading, Size: 40 * mib, Position: 12 * mib},
			spinup.Layer{ID: "dddddddddddd", State: spinup.Downloaded, Size: 8 * mib},
			spinup.Layer{ID: "eeeeeeeeeeee", State: spinup.Retrying, Size: 2 * mib, Position: mib / 2, Retries: 1}))
	want := []string{
		"app:1  30.5MiB of 60MiB at 25.5MiB/s, 5MiB extracted, 2.0s, 11.0s left",
		"  aaaaaaaaaaaa  already on this host",
		"  bbbbbbbbbbbb  extracting   [==========>         ]  5MiB / 10MiB",
		"  cccccccccccc  downloading  [======>             ]  12MiB / 40MiB  8MiB/s  3.5s left",
		"  dddddddddddd  downloaded   8MiB, waiting for bbbbbbbbbbbb below it",
		"  eeeeeeeeeeee  failed, will be downloaded again (retry 1), 512KiB so far",
	}
	if d := cmp.Diff(want, pullFrame([]*pullRow{row}, 100, 24)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	// A long name is cut at its front, and the figures stay.
	row.image = "registry.example.org/team/app:1"
	if got := pullFrame([]*pullRow{row}, 90, 2); got[0] != "…/team/app:1  30.5MiB of 60MiB at 25.5MiB/s, 5MiB extracted, 2.0s, 11.0s left (+5 layers)" {
		t.Errorf("%q", got)
	}
	// A narrow terminal has no bars, and no line reaches its edge.
	for _, l := range pullFrame([]*pullRow{row}, 40, 24) {
		if utf8.RuneCountInString(l) >= 40 || strings.Contains(l, "[=") {
			t.Errorf("%q", l)
		}
	}
}

func TestPullPictureBeforeAndAfter(t *testing.T) {
	for want, row := range map[string]*pullRow{
		"a:1  asking the registry… 1.5s":             rowAfter("a:1", pullOf(1500*time.Millisecond)),
		"a:1  1 layer already here… 2.0s (+1 layer)": rowAfter("a:1", pullOf(2*time.Second, spinup.Layer{State: spinup.Present})),
		"  x  extracting   3MiB, for 1.5s":           rowAfter("a:1", pullOf(2*time.Second, spinup.Layer{ID: "x", State: spinup.Extracting, Size: 3 * mib, Extract: spinup.Span{To: holdfast.Millis(1500 * time.Millisecond)}})),
		"a:1  was in the cache":                      {image: "a:1", ended: "was in the cache"},
		"a:1  3MiB, 1.0s (+1 layer)":                 rowAfter("a:1", pullOf(time.Second, spinup.Layer{State: spinup.Downloading, Position: 3 * mib})),
		"a\ufffd[2J:1  asking the registry… 0.0s":    rowAfter("a\x1b[2J:1", pullOf(0)),
	} {
		height := 2
		if strings.HasPrefix(want, " ") {
			height = 3 // a layer's line, below the image's
		}
		if got := pullFrame([]*pullRow{row}, 100, height); len(got) != height-1 || got[height-2] != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// If there is no room for all layers, the running ones are shown, in the image's order,
// and the rest is counted.
func TestPullPictureFitsTheHeight(t *testing.T) {
	var layers []spinup.Layer
	for i := range 30 {
		l := spinup.Layer{ID: fmt.Sprintf("layer%07d", i), State: spinup.Complete, Size: mib}
		if i >= 20 {
			l.State = spinup.Waiting
		}
		if i == 7 || i == 25 {
			l.State = spinup.Downloading
		}
		layers = append(layers, l)
	}
	rows := []*pullRow{{image: "old:1", ended: "done in 1.0s"}, rowAfter("new:1", pullOf(time.Second, layers...))}
	got := pullFrame(rows, 100, 8)
	if len(got) != 7 || got[0] != "old:1  done in 1.0s" || !strings.HasSuffix(got[1], "(+25 layers)") {
		t.Fatalf("%q", got)
	}
	var ids []string
	for _, l := range got[2:] {
		ids = append(ids, strings.Fields(l)[0])
	}
	if want := []string{"layer0000007", "layer0000020", "layer0000021", "layer0000022", "layer0000025"}; !slices.Equal(ids, want) {
		t.Errorf("%v, want %v", ids, want)
	}

	// More images than lines: the running ones are shown, and the rest is counted.
	rows = nil
	for i := range 20 {
		r := &pullRow{image: fmt.Sprintf("image-%d", i), ended: "done in 1.0s"}
		if i == 19 {
			r.ended = ""
		}
		rows = append(rows, r)
	}
	got = pullFrame(rows, 100, 5)
	if len(got) != 4 || !strings.HasPrefix(got[0], "image-19  ") || got[3] != "… and 17 images more" {
		t.Errorf("%q", got)
	}
}

// A picture is drawn over the last one, also if a narrower terminal has wrapped it,
// without erasing it first.
func TestCanvas(t *testing.T) {
	var c canvas
	if got := c.draw([]string{"one", "two"}, 80, 24); got != "\rone\x1b[K\ntwo\x1b[K\n\x1b[J" {
		t.Errorf("%q", got)
	}
	if got := c.draw([]string{strings.Repeat("x", 30)}, 80, 24); !strings.HasPrefix(got, "\x1b[2A\rxxx") {
		t.Errorf("%q", got)
	}
	// 30 characters take three lines of ten.
	if got := c.draw(nil, 10, 24); got != "\x1b[3A\r\x1b[J" {
		t.Errorf("%q", got)
	}
	// Lines that have scrolled off the top cannot be reached.
	c.draw([]string{"1", "2", "3", "4"}, 80, 24)
	if got := c.draw(nil, 80, 3); got != "\x1b[2A\r\x1b[J" {
		t.Errorf("%q", got)
	}
}

func TestMeter(t *testing.T) {
	var m meter
	at := time.Unix(1000, 0)
	if _, ok := m.left(10); ok || m.rate() != 0 {
		t.Error("an empty meter has a rate")
	}
	for i := range 100 {
		n := int64(i) * 100 // 1000 a second, then no growth
		m.add(at.Add(time.Duration(min(i, 50))*100*time.Millisecond), min(n, 5000))
	}
	if got := m.rate(); got != 1000 {
		t.Errorf("rate %v", got)
	}
	if left, ok := m.left(500); !ok || left != 500*time.Millisecond {
		t.Errorf("%v, %v", left, ok)
	}
	// Old samples do not count.
	m.add(at.Add(10*time.Second), 5000)
	m.add(at.Add(14*time.Second), 5000)
	if got := m.rate(); got != 0 {
		t.Errorf("rate %v of a standstill", got)
	}
	if len(m.samples) > 50 {
		t.Errorf("%d samples are kept", len(m.samples))
	}
	// A smaller value than before resets the meter.
	m.add(at.Add(15*time.Second), 0)
	m.add(at.Add(16*time.Second), 7)
	if got := m.rate(); got != 7 {
		t.Errorf("rate %v", got)
	}
}
