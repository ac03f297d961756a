package probe

import (
	"path/filepath"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/fact"
)

// The events of an instance of tracing are counted over all CPUs, also those that were overwritten or
// read. An instance that is off is not.
func TestTracing(t *testing.T) {
	root := t.TempDir()
	h := Host{Sys: root}
	stats := func(entries, overrun, read string) string {
		return "entries: " + entries + "\noverrun: " + overrun + "\ncommit overrun: 0\nbytes: 9\noldest event ts:     1.5\nread events: " + read + "\n"
	}
	base := "kernel/tracing/"
	files(t, root, map[string]string{
		base + "tracing_on": "1\n", base + "per_cpu/cpu0/stats": stats("0", "0", "0"),
		base + "instances/left/tracing_on": "1\n", base + "instances/left/per_cpu/cpu0/stats": stats("100", "50", "1"), base + "instances/left/per_cpu/cpu1/stats": stats("100", "0", "0"),
		base + "instances/off/tracing_on": "0\n", base + "instances/off/per_cpu/cpu0/stats": stats("9", "0", "0"),
	})
	s, err := tracingProbe().Open(t.Context(), h, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	files(t, root, map[string]string{base + "instances/left/per_cpu/cpu0/stats": stats("100", "9050", "1001")})
	fs, err := s.Read(t.Context(), time.Now().Add(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	set := &fact.Set{}
	set.Add(fs...)
	left, ok := set.Device(fact.TraceEvents, filepath.Join(root, base, "instances/left"))
	top, known := set.Device(fact.TraceEvents, filepath.Join(root, base))
	_, off := set.Device(fact.TraceEvents, filepath.Join(root, base, "instances/off"))
	if !ok || left < 990 || left > 1010 || !known || top != 0 || off {
		t.Errorf("%+v", fs)
	}
	if n, _ := set.Host(fact.TracingSeen); n != 2 {
		t.Errorf("%v instances are on", n)
	}
	if fs, err := readTracing(t.Context(), Host{Sys: t.TempDir()}); err != nil || len(fs) != 0 {
		t.Errorf("without tracefs: %v, %v", fs, err)
	}
}
