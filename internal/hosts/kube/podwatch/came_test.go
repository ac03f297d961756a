package podwatch

import (
	"testing"
	"time"

	"holdfast"
	"holdfast/internal/hosts/kube"
	"holdfast/internal/hosts/kube/cri"
	"holdfast/internal/hosts/spinup"
)

// The messages about a pull differ between versions of the kubelet.
func TestParsePulled(t *testing.T) {
	for text, want := range map[string]pulled{
		`Successfully pulled image "nginx" in 2.214s`:                                                                             {took: 2214 * time.Millisecond, waited: 2214 * time.Millisecond},
		`Successfully pulled image "a/b:1" in 558ms (1m0.5s including waiting)`:                                                   {took: 558 * time.Millisecond, waited: 60500 * time.Millisecond},
		`Successfully pulled image "docker.io/library/busybox:1.36" in 1.2s (1.2s including waiting). Image size: 2160406 bytes.`: {took: 1200 * time.Millisecond, waited: 1200 * time.Millisecond, bytes: 2160406},
		`Container image "registry.k8s.io/pause:3.9" already present on machine`:                                                  {cached: true},
		`Container image "registry.k8s.io/pause:3.9" already present on machine and can be accessed by the pod`:                   {cached: true},
		`Successfully pulled image "x" in soon`:                                                                                   {took: -1},
		`Successfully pulled image "x" in -3s`:                                                                                    {took: -1},
		`Pulling image "x"`:                                                                                                       {took: -1},
		`Failed to pull image "Successfully pulled image \"x\" in 1s"`:                                                            {took: -1},
	} {
		got, ok := parsePulled(kube.PodEvent{Message: text})
		if ok != (want.took >= 0) || ok && got != want {
			t.Errorf("%s: %+v, %v", text, got, ok)
		}
	}
}

// second is a time of these tests, in seconds.
func second(n float64) time.Time { return time.Unix(1_000_000, 0).Add(time.Duration(n * 1e9)) }

func TestWindows(t *testing.T) {
	box := cri.Sandbox{Namespace: "shop", Name: "web-1", UID: "u", Created: second(2), Seen: second(0)}
	c := cri.Container{ID: "c", Name: "web", Image: "nginx", Created: second(12), Started: second(12.5)}
	cohort := spinup.Cohort{Engine: "containerd 1.6.20"}
	seconds := func(u *came, p spinup.Phase) float64 {
		d, ok := u.rec.Times[p]
		if !ok {
			return -1
		}
		return time.Duration(d).Seconds()
	}
	check := func(name string, u *came, download, create, start, took float64, cached bool) {
		t.Helper()
		have := u.rec.Pull != nil && u.rec.Pull.Cached
		if seconds(u, spinup.Download) != download || seconds(u, spinup.Create) != create || seconds(u, spinup.Start) != start || time.Duration(u.rec.Took).Seconds() != took || have != cached {
			t.Errorf("%s: %+v", name, u.rec)
		}
		if err := u.rec.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	fresh := func() *came { return newCame(box, c, second(2), false, cohort) }
	u := fresh()
	check("nothing known of the image", u, -1, -1, .5, 12.5, false)
	u.image(arrival{seen: second(1)})
	check("it was there", u, -1, 10, .5, 12.5, true)
	u = fresh()
	u.image(arrival{absent: second(1), seen: second(9)})
	check("another pod may have pulled it before", u, -1, -1, .5, 12.5, false)
	u = fresh()
	u.image(arrival{absent: second(5), seen: second(15)})
	check("it was pulled", u, 10, -1, .5, 12.5, false)
	if slow := spinup.DefaultRules().Slow(u.rec); len(slow) != 0 {
		t.Errorf("of a pull without bytes it is said that %v was slow", slow)
	}
	// 6 s of waiting and pulling 20 MiB are within what 20 and 10 MiB/s allow together,
	// and 60 MiB as well; 30 MiB in 5 s are not.
	pull := func(took, waited string, mib string) []kube.PodEvent {
		return []kube.PodEvent{{Reason: "Pulled", Container: "spec.containers{web}", At: second(10), Message: `Successfully pulled image "nginx" in ` + took + ` (` + waited + ` including waiting). Image size: ` + mib + ` bytes.`}}
	}
	u.events(pull("5s", "6s", "62914560"))
	check("with the kubelet's event", u, 5, 2, .5, 12.5, false)
	if slow := spinup.DefaultRules().Slow(u.rec); len(slow) != 0 {
		t.Errorf("12 MiB/s, of download and extraction: %v is slow", slow)
	}
	u.events(pull("5s", "6s", "31457280"))
	if slow := spinup.DefaultRules().Slow(u.rec); len(slow) != 1 || slow[0] != spinup.Download {
		t.Errorf("6 MiB/s, of download and extraction: slow is %v", slow)
	}
	other := cohort
	other.Engine = "cri-o 1.30.0"
	v := newCame(box, c, second(2), false, other)
	v.events(pull("5s", "6s", "31457280"))
	if v.rec.Pull.Download.Rate != 0 {
		t.Errorf("CRI-O's sizes are not of what was moved: %+v", v.rec.Pull)
	}
	u.events([]kube.PodEvent{{Container: "spec.containers{web}", At: second(11), Message: `Container image "nginx" already present on machine`},
		{Container: "spec.containers{webber}", At: second(3), Message: `Successfully pulled image "x" in 1s`}})
	check("the kubelet says that it was there", u, -1, 1, .5, 12.5, true)
	u = newCame(box, c, second(7), true, cohort)
	u.image(arrival{seen: second(1)})
	check("behind one that runs, where a hook may have been waited for", u, -1, -1, .5, 5.5, false)
	bad := c
	bad.Started, bad.Ended, bad.Code, bad.Message = time.Time{}, second(13), 128, "no such file"
	u = newCame(box, bad, second(2), false, cohort)
	if err := u.rec.Validate(); err != nil || u.rec.Outcome != spinup.Failed || u.rec.Failed != spinup.Start || u.rec.Error != "no such file" {
		t.Errorf("one that did not start: %+v, %v", u.rec, err)
	}
}

func TestReady(t *testing.T) {
	box := cri.Sandbox{Namespace: "shop", Name: "web-1", UID: "u", Created: second(2)}
	u := newCame(box, cri.Container{ID: "c", Name: "web", Image: "nginx", Created: second(12), Started: second(12.5)}, second(2), false, spinup.Cohort{})
	var p kube.Pod
	if !u.ready(p) || len(u.rec.Times) != 1 {
		t.Errorf("without a probe readiness must not be awaited: %+v", u.rec)
	}
	p.Spec.Containers = []kube.ContainerSpec{{Name: "web", ReadinessProbe: &struct{}{}}}
	for u.asked = 1; u.asked < 3; u.asked++ {
		if u.ready(p) {
			t.Errorf("it is not ready, asked for the %d. time: %+v", u.asked, u.rec)
		}
	}
	late := *u
	late.rec.Times = map[spinup.Phase]holdfast.Millis{}
	if !late.ready(p) || late.rec.Outcome != spinup.Failed || late.rec.Failed != spinup.Ready || late.rec.Validate() != nil {
		t.Errorf("never ready: %+v", late.rec)
	}
	p.Status.Conditions = []kube.Condition{{Type: "Ready", Status: "True", Since: second(24)}}
	if !u.ready(p) || time.Duration(u.rec.Times[spinup.Ready]) != 11500*time.Millisecond || time.Duration(u.rec.Took) != 22*time.Second {
		t.Errorf("ready: %+v", u.rec)
	}
	if slow := spinup.DefaultRules().Slow(u.rec); len(slow) != 1 || slow[0] != spinup.Ready {
		t.Errorf("slow: %v", slow)
	}
}
