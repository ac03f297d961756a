package spinup

import (
	"fmt"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/docker/go-units"
)

// Line returns the pull as one line for a log:
//
//	pull stats: download 124.3MiB in 1.283s (96.84MiB/s), extract 124.3MiB in 2.806s (44.28MiB/s)
//
// The line states if the image was in the cache, if another pull fetched the layers,
// and if a figure is unknown.
func (p Pull) Line() string {
	if p.Cached {
		return "image was in the cache"
	}
	var b strings.Builder
	b.WriteString("pull stats: ")
	if p.Joined {
		fmt.Fprintf(&b, "joined another pull of the same layers, waited %s for the download and %s for the extraction",
			seconds(time.Duration(p.Download.Wall)), seconds(time.Duration(p.Extract.Wall)))
	} else if p.Whole {
		fmt.Fprintf(&b, "download and extract %s", p.Download)
	} else {
		fmt.Fprintf(&b, "download %s, extract %s", p.Download, p.Extract)
	}
	if p.Retries > 0 {
		fmt.Fprintf(&b, ", %d %s with %s of waiting", p.Retries, plural(p.Retries, "retry", "retries"), seconds(time.Duration(p.RetryWait)))
	}
	if !p.Done {
		b.WriteString(", not finished")
	}
	return b.String()
}

// String returns "124.3MiB in 1.283s (96.84MiB/s)", without the figures that are
// unknown.
func (t Transfer) String() string {
	size := units.BytesSize(float64(t.Bytes))
	switch {
	case !t.Exact && t.Bytes == 0:
		return fmt.Sprintf("of unknown size in %s", seconds(time.Duration(t.Wall)))
	case !t.Exact:
		return fmt.Sprintf("at least %s in %s (rate unknown)", size, seconds(time.Duration(t.Wall)))
	case t.Rate <= 0 && t.Bytes > 0:
		return fmt.Sprintf("%s in a time too short to measure", size)
	case t.Rate <= 0:
		return "nothing"
	}
	return fmt.Sprintf("%s in %s (%s/s)", size, seconds(time.Duration(t.Wall)), units.BytesSize(t.Rate*mib))
}

// Using returns the line that names an image by its digest:
//
//	using image redis@sha256:6621f92d…
//
// Without a digest the line has the image's name as it is.
func Using(image, digest string) string {
	if named, err := reference.ParseNormalizedNamed(image); err == nil && digest != "" {
		image = reference.FamiliarName(named) + "@" + digest
	}
	return "using image " + image
}

// Lines returns the spin-up as lines for a log: its pull, the time of each recorded phase
// of its container, and the digest of the container's image:
//
//	time to create container: 3.201s
func (r Record) Lines() []string {
	var lines []string
	if r.Pull != nil {
		lines = append(lines, r.Pull.Line())
	}
	for _, l := range []struct {
		phase Phase
		words string
	}{
		{Create, "time to create container"},
		{Start, "time to start container"},
		{Ready, "time until container was ready"},
	} {
		if took, ok := r.Times[l.phase]; ok {
			lines = append(lines, l.words+": "+seconds(time.Duration(took)))
		}
	}
	if _, created := r.Times[Create]; created && r.Digest != "" {
		lines = append(lines, Using(r.Image, r.Digest))
	}
	return lines
}

// seconds formats a time with milliseconds: 1.283s.
func seconds(d time.Duration) string { return fmt.Sprintf("%.3fs", d.Seconds()) }

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
