package reload

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/bench"
)

// made is a run with n answered requests that waited 1 to n ms, and one that was
// refused.
func made(m Mode, c Change, n int, longest time.Duration) *Run {
	rec := newRecording()
	for i := range n {
		due := time.Duration(i) * 10 * time.Millisecond
		rec.add(due, due+time.Duration(i+1)*time.Millisecond, fine)
	}
	rec.add(0, time.Second, refused)
	rec.took = time.Duration(n) * 10 * time.Millisecond
	r := &Run{Mode: m, Change: c, changes: []span{{0, longest / 2}, {time.Second, longest}}}
	r.sum(rec)
	return r
}

func sample() Details {
	return Details{HAProxy: "2.6", Rate: 100, Runs: []*Run{
		made(Nothing, Reload, 100, 20*time.Millisecond),
		{Mode: Plug, Change: Reload, Skipped: "sch_plug: not in this kernel"},
		made(NFQueue, Reload, 100, 50*time.Millisecond),
		made(Park, Reload, 100, 150*time.Millisecond),
		made(Park, Restart, 400, time.Millisecond),
	}}
}

func TestScoreIsTheWorstOfOurReloads(t *testing.T) {
	res := sample().result()
	if res.Score != 1 || res.Failed != 3 { // (50 + 50) ms ÷ 100 ms; nothing's one is not ours
		t.Errorf("score %v, failed %d", res.Score, res.Failed)
	}
	if len(res.Rows) != 4 || res.Rows[3].Max != 400 {
		t.Errorf("rows %+v", res.Rows)
	}
	r := sample().Runs[0]
	if r.P50 != 50 || r.P95 != 95 || r.P99 != 99 || r.Max != 100 || r.Requests != 101 || r.Changes != 2 || r.LongestChange != 20 {
		t.Errorf("%+v", r)
	}
}

// What a machine that stood still has kept waiting is told apart from the rest.
func TestStills(t *testing.T) {
	s := &stills{spans: []span{{300 * time.Millisecond, 100 * time.Millisecond}, {5 * time.Second, time.Second}, {350 * time.Millisecond, 150 * time.Millisecond}}}
	all := s.all()
	if want := []span{{300 * time.Millisecond, 200 * time.Millisecond}, {5 * time.Second, time.Second}}; !slices.Equal(all, want) {
		t.Fatalf("%v", all)
	}
	rec := newRecording()
	rec.add(0, 40*time.Millisecond, fine)                                             // before
	rec.add(200*time.Millisecond, 900*time.Millisecond, fine)                         // over the first
	rec.add(500*time.Millisecond+afterStill/2, 500*time.Millisecond+afterStill, fine) // in the rush behind it
	rec.add(3*time.Second, 3070*time.Millisecond, fine)                               // between
	r := &Run{stills: all}
	r.sum(rec)
	if r.Stills != 2 || r.LongestStill != 1000 || r.Awake != 70 || r.Max != 700 {
		t.Errorf("%+v", r)
	}
}

// What is noted lies within the watching, and is as long as it has to be to count.
func TestWatchStills(t *testing.T) {
	end := make(chan struct{})
	began := time.Now()
	s, done := watchStills(began, end)
	time.Sleep(10 * stillTick)
	close(end)
	done.Wait()
	for _, still := range s.all() {
		if still.took < stillFor || still.at < 0 || still.at+still.took > time.Since(began) {
			t.Errorf("%+v", still)
		}
	}
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	if err := sample().result().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"requests failed p50", "reload, nothing 101 1 50.0 95.0 99.0 100.0 2 20.0",
		"reload, plug: not here: sch_plug: not in this kernel", "score 1.00", "note: restart, park: 1 × refused",
	} {
		if !strings.Contains(strings.Join(strings.Fields(b.String()), " "), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
}

func TestJSON(t *testing.T) {
	b, err := json.Marshal(sample().result())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"score":1,`, `"mode":"park","change":"restart","requests":401,"failed":1,"reasons":{"refused":1},"p50":200,`, `"reloads":2,"longest_reload":150`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s in\n%s", want, b)
		}
	}
}

// The page is whole, has a picture of each run that was made, and needs nothing
// from elsewhere.
func TestPage(t *testing.T) {
	d := sample()
	var b bytes.Buffer
	if err := writePage(&b, d.result(), d); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	if n := strings.Count(page, "<svg "); n != 4 {
		t.Errorf("%d pictures", n)
	}
	for _, foreign := range []string{"http:", "https:", "src=", "<link", "@import", "url(", "ZgotmplZ"} {
		if strings.Contains(page, foreign) {
			t.Errorf("the page has %q", foreign)
		}
	}
	for _, want := range []string{"<td>401</td>", "prefers-color-scheme: dark", "sch_plug: not in this kernel", "1 × refused"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	x := xml.NewDecoder(&b)
	x.Strict, x.AutoClose, x.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		if _, err := x.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("the page's tags do not match: %v", err)
		}
	}
}

// A dot for each request: the lowest and highest, the failed ones above, and the
// shade by how many.
func TestPlot(t *testing.T) {
	rec := newRecording()
	for range shades[2] {
		rec.add(0, time.Microsecond, fine) // below the scale
	}
	rec.add(time.Second, time.Second+time.Minute, fine) // above it
	rec.add(time.Second, time.Second, reset)
	rec.took = time.Second
	p := plotOf(rec, []span{{at: time.Second / 2}})
	lastX, middle := left+(plotCols-1)*dot, left+plotCols/2*dot
	for name, c := range map[string]struct{ got, want string }{
		"full":   {string(p.Shades[2]), attr(left, p.Bottom-1, "h2")},
		"middle": {string(p.Shades[1]), `d=""`},
		"pale":   {string(p.Shades[0]), attr(lastX, p.Bottom-(plotRows-1)*dot-1, "h2")},
		"failed": {string(p.Failed), attr(lastX+1, top, "v8")},
		"reload": {string(p.Changes), attr(middle+1, p.Bottom+2, "v4")},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", name, c.got, c.want)
		}
	}
	if rowOf(1e3) != 20 || rowOf(1e6) != 80 { // five decades from 0.1 ms
		t.Errorf("1 ms in row %d, 1 s in row %d", rowOf(1e3), rowOf(1e6))
	}
	if len(p.Rows) != 4 || len(p.Columns) < 4 {
		t.Errorf("grid %v %v", p.Rows, p.Columns)
	}
}

func attr(x, y int, line string) string { return fmt.Sprintf(`d="M%d %d%s"`, x, y, line) }

// The score of the experiment without reloads is the worst backend's median ratio.
func TestIdleResult(t *testing.T) {
	r := &IdleRun{
		Mode: Park, Requests: 1000, Failed: 1, alone: []float64{30, 20, 40}, installed: []float64{4, 3, 5},
		Pairs: []Pair{{100, 98, 50, 51}, {100, 120, 50, 50}, {200, 180, 50, 51}, {100, 99, 100, 101}, {10, 10, 10, 20}},
	}
	r.sum()
	if r.Ratio != 0.99 || r.From != 0.98 || r.To != 1 || r.CPU != 1.02 || r.Alone != 30 || r.Installed != 4 {
		t.Errorf("%+v", r)
	}
	better := &IdleRun{Mode: NFQueue, Pairs: []Pair{{1, 1, 1, 1}}}
	better.sum()
	d := IdleDetails{HAProxy: "2.6", Runs: []*IdleRun{r, better, {Mode: Plug, Skipped: "sch_plug: not in this kernel"}}}
	res := d.result()
	if res.Score != 0.99 || res.Failed != 1 || len(res.Rows) != 8 {
		t.Errorf("%+v", res)
	}
	wantText(t, res, "park 5 1000 1 100 99 0.990 0.980–1.000 1.020 30.0 4.0", "plug: not here: sch_plug", "at least 0.97 is wanted")
}

// The score of the experiment with kills goes by the longest wait, whichever client failed.
func TestKillResult(t *testing.T) {
	d := KillDetails{Runs: []*KillRun{
		{Mode: Park, Victim: KillNone, Requests: 10, Longest: 9000, Over: 1},
		{Mode: Park, Victim: KillKeeper, Kills: 3, Missed: 1, Requests: 10, Refused: 2, Longest: 3000, Over: 4},
		{Mode: NFQueue, Victim: KillAll, Skipped: "no nftables"},
	}}
	res := d.result()
	if res.Score != 0.5 || res.Failed != 4 || len(res.Rows) != 2 {
		t.Errorf("%+v", res)
	}
	wantText(t, res, "park, keeper 3 1 10 2 3000.0 4", "nfqueue, keeper and protect: not here: no nftables")
}

func wantText(t *testing.T, res bench.Result, wants ...string) {
	t.Helper()
	var b bytes.Buffer
	if err := res.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range wants {
		if !strings.Contains(strings.Join(strings.Fields(b.String()), " "), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	good := Options{Requests: 1, Rate: 1}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*Options){
		func(o *Options) { o.Idle, o.WithKills = true, true },
		func(o *Options) { o.Idle, o.Full = true, true },
		func(o *Options) { o.Pairs = -1 },
		func(o *Options) { o.Kills = 10_001 },
		func(o *Options) { o.Connections = maxOpen + 1 },
	} {
		o := good
		change(&o)
		if o.Check() == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}
