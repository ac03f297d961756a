package holdfast

import (
	"encoding/json"
	"testing"
	"time"
)

func TestMillisInJSON(t *testing.T) {
	b, err := json.Marshal(Millis(1234567 * time.Nanosecond))
	if err != nil || string(b) != "1.235" {
		t.Fatalf("got %s, %v", b, err)
	}
	var m Millis
	if err := json.Unmarshal([]byte("1.235"), &m); err != nil || m != Millis(1235*time.Microsecond) {
		t.Errorf("got %v, %v", time.Duration(m), err)
	}
	if json.Unmarshal([]byte(`"soon"`), &m) == nil {
		t.Error("a word was taken for milliseconds")
	}
	for _, far := range []string{"4.6800352899844296e+16", "-9223372036854.775808", "1e300"} {
		if json.Unmarshal([]byte(far), &m) == nil {
			t.Errorf("%s became %v", far, time.Duration(m))
		}
	}
}

func TestMillisAsText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		3240 * time.Microsecond: "3.2ms",
		48 * time.Millisecond:   "48ms",
		1280 * time.Millisecond: "1.28s",
	} {
		if got := Millis(d).String(); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

func TestCleanNeedsAllDeadAndAllReleased(t *testing.T) {
	for _, c := range []struct {
		r    DrainReport
		want bool
	}{
		{DrainReport{Owned: 2, Released: 2}, true},
		{DrainReport{Owned: 2, Released: 1}, false},
		{DrainReport{Left: []Leftover{{}}}, false},
	} {
		if got := c.r.Clean(); got != c.want {
			t.Errorf("%+v: clean is %v", c.r, got)
		}
	}
}
