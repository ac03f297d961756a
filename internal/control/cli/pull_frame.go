package cli

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/docker/go-units"

	"holdfast/internal/hosts/spinup"
)

// pullRow is one image in the picture of running pulls.
type pullRow struct {
	image    string
	now      spinup.Pull
	download meter
	extract  meter
	layers   map[string]meter // of the downloads, by the layer's id
	ended    string           // the result, "" until the end
}

// take updates the figures.
func (r *pullRow) take(at time.Time, p spinup.Pull) {
	r.now = p
	s := sumOf(p)
	r.download.add(at, s.downloaded)
	r.extract.add(at, s.extracted)
	for _, l := range p.Layers {
		if l.State != spinup.Downloading {
			continue
		}
		if r.layers == nil {
			r.layers = map[string]meter{}
		}
		m := r.layers[l.ID]
		m.add(at, l.Position)
		r.layers[l.ID] = m
	}
}

// pullSum is the progress of a pull, in compressed bytes of the missing layers.
type pullSum struct {
	downloaded, extracted, total int64
	known                        bool // the total is
	missing, there               int  // layers
}

func sumOf(p spinup.Pull) pullSum {
	s := pullSum{known: true}
	for _, l := range p.Layers {
		if l.State == spinup.Present {
			s.there++
			continue
		}
		s.missing++
		s.total += l.Size
		s.known = s.known && l.Size > 0
		switch l.State {
		case spinup.Downloading, spinup.Retrying:
			s.downloaded += l.Position
		case spinup.Downloaded:
			s.downloaded += l.Size
		case spinup.Extracting:
			s.downloaded += l.Size
			s.extracted += l.Position
		case spinup.Complete:
			s.downloaded += l.Size
			s.extracted += l.Size
		}
	}
	return s
}

// head returns the image's own line, for a terminal of this width. A long name is cut
// at its front: images of one registry begin alike.
func (r *pullRow) head(width int, hidden int) string {
	said := r.figures()
	if hidden > 0 {
		said += fmt.Sprintf(" (+%s)", count(hidden, "layer"))
	}
	name := []rune(clean(r.image))
	if room := max(width-utf8.RuneCountInString(said)-3, shortName); len(name) > room {
		name = append([]rune("…"), name[len(name)-room+1:]...)
	}
	return string(name) + "  " + said
}

// shortName is the part of an image's name that is always shown, in characters.
const shortName = 12

// figures returns the figures of the image's line.
func (r *pullRow) figures() string {
	if r.ended != "" {
		return r.ended
	}
	s := sumOf(r.now)
	took := time.Duration(r.now.Took)
	if s.missing == 0 {
		if s.there > 0 {
			return fmt.Sprintf("%s already here… %s", count(s.there, "layer"), tenths(took))
		}
		return "asking the registry… " + tenths(took)
	}
	line := units.BytesSize(float64(s.downloaded))
	if s.known {
		line += " of " + units.BytesSize(float64(s.total))
	}
	if rate := r.download.rate(); rate > 0 && (s.downloaded < s.total || !s.known) {
		line += fmt.Sprintf(" at %s/s", units.BytesSize(rate))
	}
	if s.extracted > 0 {
		line += fmt.Sprintf(", %s extracted", units.BytesSize(float64(s.extracted)))
	}
	line += ", " + tenths(took)
	if left, ok := r.left(s); ok {
		line += ", " + tenths(left) + " left"
	}
	return line
}

// left returns the remaining time of the pull: downloads and extractions run
// concurrently, and the slower one decides.
func (r *pullRow) left(s pullSum) (time.Duration, bool) {
	if !s.known {
		return 0, false
	}
	download, ok := r.download.left(s.total - s.downloaded)
	if !ok {
		return 0, false
	}
	extract, ok := r.extract.left(s.total - s.extracted)
	if !ok {
		return download, download > 0 // no extraction has begun
	}
	return max(download, extract), true
}

// layer returns a layer's line.
func (r *pullRow) layer(i int, width int) string {
	l := r.now.Layers[i]
	size := units.BytesSize(float64(l.Size))
	if l.Size == 0 {
		size = "?"
	}
	said := ""
	switch l.State {
	case spinup.Announced:
		said = "waiting for the registry's answer"
	case spinup.Waiting:
		said = "waiting for a free download slot of the engine"
	case spinup.Downloading:
		said = "downloading  " + bar(l.Position, l.Size, width) + units.BytesSize(float64(l.Position)) + " / " + size
		if m := r.layers[l.ID]; m.rate() > 0 {
			said += fmt.Sprintf("  %s/s", units.BytesSize(m.rate()))
			if left, ok := m.left(l.Size - l.Position); ok && l.Size > 0 {
				said += "  " + tenths(left) + " left"
			}
		}
	case spinup.Retrying:
		said = fmt.Sprintf("failed, will be downloaded again (retry %d), %s so far", l.Retries, units.BytesSize(float64(l.Position)))
	case spinup.Downloaded:
		said = "downloaded   " + size
		if below := r.below(i); below != "" {
			said += ", waiting for " + below + " below it"
		}
	case spinup.Extracting:
		said = "extracting   "
		if l.Position > 0 {
			said += bar(l.Position, l.Size, width) + units.BytesSize(float64(l.Position)) + " / " + size
		} else { // the containerd image store counts whole seconds only
			said += size + ", for " + tenths(time.Duration(l.Extract.To-l.Extract.From))
		}
	case spinup.Complete:
		said = fmt.Sprintf("done         %s, downloaded in %s, extracted in %s", size,
			tenths(time.Duration(l.DownloadTime)), tenths(time.Duration(l.Extract.To-l.Extract.From)))
	case spinup.Present:
		said = "already on this host"
	}
	if l.Joined && l.State != spinup.Complete {
		said += "  (downloaded by another pull)"
	}
	return "  " + clean(l.ID) + "  " + said
}

// below returns the layer for which the i-th one waits: the lowest unfinished one
// before it.
func (r *pullRow) below(i int) string {
	for _, l := range r.now.Layers[:i] {
		if l.State != spinup.Complete && l.State != spinup.Present {
			return clean(l.ID)
		}
	}
	return ""
}

// barWidth is the width of a bar, without its ends. Narrow terminals have no bar.
const (
	barWidth    = 20
	barTerminal = 90
)

// bar shows which part of a whole is done.
func bar(part, whole int64, width int) string {
	if width < barTerminal || whole <= 0 {
		return ""
	}
	n := int(min(max(part, 0), whole) * barWidth / whole)
	head := ""
	if n < barWidth {
		head = ">"
	}
	return fmt.Sprintf("[%-*s]  ", barWidth, strings.Repeat("=", n)+head)
}

func tenths(d time.Duration) string {
	if d >= time.Minute {
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}

// rank orders the layers' lines if there is no room for all.
func rank(s spinup.State) int {
	switch s {
	case spinup.Downloading, spinup.Extracting, spinup.Retrying:
		return 0
	case spinup.Downloaded:
		return 1
	case spinup.Announced, spinup.Waiting:
		return 2
	}
	return 3
}

// pullFrame returns the lines of the picture: at most height - 1, which leaves a line
// for the cursor, and each shorter than width.
func pullFrame(rows []*pullRow, width, height int) []string {
	room := max(height-1, 1)
	shown := rows
	if len(rows) > room {
		// Running pulls come first.
		over := func(r *pullRow) bool { return r.ended != "" }
		shown = append(slices.DeleteFunc(slices.Clone(rows), over), slices.DeleteFunc(slices.Clone(rows), func(r *pullRow) bool { return !over(r) })...)
		shown = shown[:room-1]
	}
	visible := chooseLayers(shown, room-len(shown))
	var lines []string
	for _, r := range shown {
		hidden := 0
		if r.ended == "" {
			hidden = len(r.now.Layers) - len(visible[r])
		}
		lines = append(lines, narrow(r.head(width, hidden), width))
		for _, i := range visible[r] {
			lines = append(lines, narrow(r.layer(i, width), width))
		}
	}
	if rest := len(rows) - len(shown); rest > 0 {
		lines = append(lines, narrow(fmt.Sprintf("… and %s more", count(rest, "image")), width))
	}
	return lines
}

// chooseLayers selects the layers' lines that fit, by rank.
func chooseLayers(rows []*pullRow, room int) map[*pullRow][]int {
	type at struct {
		row *pullRow
		i   int
	}
	var all []at
	for _, r := range rows {
		if r.ended != "" {
			continue
		}
		for i := range r.now.Layers {
			all = append(all, at{r, i})
		}
	}
	sort.SliceStable(all, func(i, j int) bool {
		return rank(all[i].row.now.Layers[all[i].i].State) < rank(all[j].row.now.Layers[all[j].i].State)
	})
	chosen := map[*pullRow][]int{}
	for _, a := range all[:min(len(all), max(room, 0))] {
		chosen[a.row] = append(chosen[a.row], a.i)
	}
	for _, list := range chosen {
		slices.Sort(list)
	}
	return chosen
}
