package dashboard_test

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/spinup"
)

// created returns a spin-up with the given time of create.
func created(begun time.Time, seconds float64, driver, image string) spinup.Record {
	return spinup.Record{
		ID: fmt.Sprintf("%016x%08x", begun.UnixNano(), len(image)), Kind: spinup.ForRun, Job: "run-1", Image: image, Begun: begun, Outcome: spinup.OK,
		Took:  holdfast.Millis(seconds * float64(time.Second)),
		Times: map[spinup.Phase]holdfast.Millis{spinup.Create: holdfast.Millis(seconds * float64(time.Second))}, Cohort: spinup.Cohort{Host: "n1", Driver: driver},
	}
}

// row returns a row of a table, without markup.
func row(body, name string) string {
	for _, r := range regexp.MustCompile(`(?s)<tr.*?</tr>`).FindAllString(body, -1) {
		if strings.Contains(r, `<th scope="row" class="long">`+name+"<") {
			return strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(r, " ")), " ")
		}
	}
	return ""
}

func TestSpinupPage(t *testing.T) {
	s := serve(t, false)
	now := time.Now()
	var all []spinup.Record
	for i := range 10 {
		all = append(all, created(now.Add(-time.Duration(i)*time.Minute), map[bool]float64{true: 20, false: 1}[i < 2], "aufs", "a"),
			created(now.Add(-time.Duration(i)*time.Minute-time.Second), 1, "overlay2", "<b>"))
	}
	all = append(all, created(now.Add(-60*24*time.Hour), 20, "vfs", "old")) // older than the time of the page
	s.back.SetSpinups(all)
	body := s.get(t, "/spinup").body
	if got := row(body, "aufs"); got != "aufs 10 – – 20 % 2 of 10 – –" {
		t.Errorf("the row of the driver aufs is %q", got)
	}
	if got := row(body, "overlay2"); got != "overlay2 10 – – 0 % 0 of 10 – –" {
		t.Errorf("the row of the driver overlay2 is %q", got)
	}
	if row(body, "vfs") != "" {
		t.Error("a spin-up older than the time of the page is counted")
	}
	if got := row(s.get(t, "/spinup?by=image&per=hour").body, "&lt;b&gt;"); !strings.HasPrefix(got, "&lt;b&gt; 10") {
		t.Errorf("the row of an image with an odd name is %q", got)
	}
	// The share links to the slow spin-ups, and those to their own pages.
	link := regexp.MustCompile(`<td class="n"><a href="([^"]*group=aufs[^"]*)">20 %`).FindStringSubmatch(body)
	if link == nil {
		t.Fatalf("the share has no link:\n%s", body)
	}
	list := s.get(t, strings.ReplaceAll(link[1], "&amp;", "&")).body
	ones := regexp.MustCompile(`<a href="(/spinup/[0-9a-f]+)">`).FindAllStringSubmatch(list, -1)
	if len(ones) != 2 || !strings.Contains(list, "slow in create") {
		t.Fatalf("2 were slow, the page has %d:\n%s", len(ones), list)
	}
	if one := s.get(t, ones[0][1]).body; !strings.Contains(one, `<span class="tag trouble">slow</span>`) || !strings.Contains(one, "10 s") {
		t.Errorf("a slow spin-up:\n%s", one)
	}
	for path, want := range map[string]int{"/spinup/xyz": 400, "/spinup/ffff": 404, "/spinup/slow?since=yesterday": 400, "/spinup/slow?page=99999999&group=%00": 200,
		"/spinup?per=x&by=y&kind=z": 200, "/live/slow": 404} {
		if r := s.get(t, path); r.status != want {
			t.Errorf("%s: status %d, want %d", path, r.status, want)
		}
	}
}

// A spin-up that has just ended appears on the page without a read of all records, and
// none appears twice.
// The page of the fleet has the records of all nodes, and names those without an answer.
func TestSpinupFleetPage(t *testing.T) {
	s := serve(t, false)
	now := time.Now()
	s.back.SetSpinups([]spinup.Record{created(now, 20, "aufs", "a"), created(now.Add(-time.Second), 1, "aufs", "a"), created(now.Add(-time.Minute), 1, "overlay2", "a")})
	body := s.get(t, "/spinup/fleet?by=driver").body
	says(t, "/spinup/fleet", body, "3 spin-ups on 1 node,", "n2: nothing listens at node n2", `aria-current="true">driver`)
	if got := row(body, "aufs"); got != "aufs 2 – – 50 % 1 of 2 – –" {
		t.Errorf("the row of the driver aufs is %q", got)
	}
	if got := row(s.get(t, "/spinup/fleet?by=colour").body, "n1"); !strings.HasPrefix(got, "n1 3") {
		t.Errorf("the row of the node is %q", got)
	}
	s.back.SetFault(holdfast.WithHint(fmt.Errorf("the records are in use: %w", holdfast.ErrBusy), "wait"))
	says(t, "/spinup/fleet", s.get(t, "/spinup/fleet").body, "the records are in use", "Hint: wait")
}

func TestSpinupPageGoesOn(t *testing.T) {
	s := serve(t, false)
	now := time.Now()
	s.back.SetSpinups([]spinup.Record{created(now.Add(-2*time.Hour), 20, "aufs", "a"), created(now.Add(-time.Minute), 20, "aufs", "a")})
	messages, stop := s.follow(t, "/live/spinup")
	defer stop()
	until(t, messages, "2 of 2")
	s.back.SetSpinups([]spinup.Record{created(now.Add(-2*time.Hour), 20, "aufs", "a"), created(now.Add(-time.Minute), 20, "aufs", "a"),
		created(now.Add(-30*time.Minute), 1, "aufs", "ab"), created(now, 1, "aufs", "a")})
	until(t, messages, "2 of 4")
	s.back.SetFault(errors.New("the disk is gone"))
	if m := until(t, messages, "the disk is gone"); strings.Contains(m, "0 spin-ups") {
		t.Errorf("old data is not shown any more: %s", m)
	}
	if r := s.get(t, "/spinup"); r.status != http.StatusOK {
		t.Errorf("status %d", r.status)
	}
}
