package agent

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor"
	"holdfast/internal/platform/linux/netns"
	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// burnTemplate is a small web server with a shell beside it and a tenth of a CPU.
const burnTemplate = `
  - name: web
    image: ` + labtest.Busybox + `
    command: [httpd, -f, -p, "8080", -h, /etc]
    port: 8080
    cpus: 0.1
    ready: {http: /hostname, timeout: 2m}
`

// A finding about a container's control group or network names its session, with and
// without pools. It names neither another session nor containers of the pools.
func TestDoctorNamesSessionsWithEachPool(t *testing.T) {
	labtest.NeedLong(t, "two examinations of 6 s for each pool")
	eachPool(t, pooled, func(t *testing.T, pool string) {
		h := newHost(t, poolOf(pool, burnTemplate))
		h.pool = pool
		h.start()
		for _, key := range []string{"alice", "beside"} {
			if res, body := h.get("/s/" + key + "/hostname"); res.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s: %s", key, res.Status, body)
			}
		}
		h.must("session", "exec", "alice", "--", "sh", "-c", "while :; do :; done </dev/null >/dev/null 2>&1 &")
		fillConntrack(t, h.inits()["alice"])
		hers := h.running()["alice"][0]
		var report doctor.Report
		poll.Until(t, "the doctor finds both", func() bool {
			report = h.examine()
			return culprit(report, "throttling", hers) != nil && culprit(report, "conntrack-full", hers) != nil
		})
		for _, rule := range []string{"throttling", "conntrack-full"} {
			if w := culprit(report, rule, hers); w.Session != "alice" || w.Template != "web" || !strings.HasPrefix(w.Image, "busybox") {
				t.Errorf("%s: %+v", rule, w)
			}
			for _, c := range append(h.containers(), h.holders()...) {
				if w := culprit(report, rule, c.ID); w != nil && c.ID != hers {
					t.Errorf("%s of alice: %+v is named, too", rule, w)
				}
			}
		}
	})
}

// culprit returns the container that a finding of the report names, nil for none.
func culprit(r doctor.Report, rule, container string) *doctor.Subject {
	for _, f := range r.Findings {
		if f.Rule == rule && f.Subject != nil && f.Subject.ContainerID == container {
			return f.Subject
		}
	}
	return nil
}

// examine returns the doctor's report about this machine, with the engine's names.
func (h *host) examine() (r doctor.Report) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), holdfastBinary(h.t), "doctor", "--for", "3s", "--json")
	cmd.Env = append(os.Environ(), "HOLDFAST_CONFIG="+h.configFile())
	out, err := cmd.Output()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		h.t.Fatal(err)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		h.t.Fatalf("%v, %v: %s", err, cmd.ProcessState, out)
	}
	return r
}

// fillConntrack adds connections without a process to the table of a process's network,
// until it is nearly full. Older kernels have one limit for all namespaces, which cannot be
// lowered for one.
func fillConntrack(t *testing.T, pid int) {
	t.Helper()
	err := netns.Do(netns.OfProcess(pid), func() error {
		const limit = "/proc/sys/net/netfilter/nf_conntrack_max"
		_ = os.WriteFile(limit, []byte("100"), 0)
		text, err := os.ReadFile(limit)
		if err != nil {
			return err
		}
		most, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return err
		}
		table, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer table.Close()
		server := net.IPv4(192, 0, 2, 1).To4()
		for i := range most * 9 / 10 {
			client := net.IPv4(10, byte(i>>16), byte(i>>8), byte(i)).To4()
			err := table.ConntrackCreate(netlink.ConntrackTable, netlink.FAMILY_V4, &netlink.ConntrackFlow{
				FamilyType: netlink.FAMILY_V4, TimeOut: 600,
				Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: client, DstIP: server, SrcPort: 5000, DstPort: 53},
				Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: server, DstIP: client, SrcPort: 53, DstPort: 5000},
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
