package probe

import (
	"strings"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
)

// The rate of a container, and of a group above containers, is compared with the limit that it comes
// nearest to. A group without a limit, or without containers, has no fact.
func TestDiskLimits(t *testing.T) {
	id, other := strings.Repeat("a", 64), strings.Repeat("b", 64)
	for name, c := range map[string]struct {
		v2            bool
		before, after map[string]string
		want          map[string]float64
	}{
		"v2": {
			true,
			map[string]string{
				"ci.slice/io.max": "254:0 rbps=max wbps=max riops=40 wiops=10\n", "ci.slice/io.stat": "254:0 rbytes=0 wbytes=0 rios=0 wios=100 dbytes=0 dios=0\n",
				"ci.slice/" + id + "/io.max": "", "ci.slice/" + id + "/io.stat": "254:0 rbytes=0 wbytes=0 rios=0 wios=100\n",
				"ci.slice/" + other + "/io.max": "254:0 rbps=1000 wbps=max riops=max wiops=max\n", "ci.slice/" + other + "/io.stat": "8:0 rbytes=9 wios=3\n",
				"ssh.service/io.max": "254:0 rbps=1 wbps=1 riops=1 wiops=1\n", "ssh.service/io.stat": "254:0 rios=1\n",
			},
			map[string]string{"ci.slice/io.stat": "254:0 rbytes=0 wbytes=0 rios=40 wios=195 dbytes=0 dios=0\n"},
			map[string]float64{"/ci.slice": 0.95, "/ci.slice/" + other: 0},
		},
		"v1": {
			false,
			map[string]string{
				id + "/blkio.throttle.read_bps_device": "", id + "/blkio.throttle.write_iops_device": "254:0 10\n", id + "/blkio.throttle.read_iops_device": "254:0 100\n",
				id + "/blkio.throttle.io_serviced": "254:0 Read 0\n254:0 Write 5\n254:0 Total 5\nTotal 5\n",
			},
			map[string]string{id + "/blkio.throttle.io_serviced": "254:0 Read 20\n254:0 Write 105\n254:0 Total 125\nTotal 125\n"},
			map[string]float64{"/" + id: 1},
		},
	} {
		m := cgroup.Mount{Point: t.TempDir(), V2: c.v2, Controllers: []string{"blkio"}}
		h := Host{Groups: cgroup.Mounts{m}}
		files(t, m.Point, c.before)
		before, err := readDiskLimits(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		files(t, m.Point, c.after)
		after, err := readDiskLimits(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		fs, err := diskLimitFacts(h, before, after, 10*time.Second)
		if err != nil || len(fs) != len(c.want) {
			t.Errorf("%s: %+v, %v", name, fs, err)
		}
		for _, f := range fs {
			if want, ok := c.want[f.Subject.Cgroup+f.Subject.Device]; !ok || f.Name != fact.DiskLimitUsed || f.Value != want {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
}
