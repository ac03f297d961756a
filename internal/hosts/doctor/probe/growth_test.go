package probe

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/cgroup"
	"holdfast/internal/platform/linux/proc"
)

// sampledAt returns samples of one amount, one a second.
func sampledAt(begin time.Time, name string, values ...float64) (samples []levels) {
	for i, v := range values {
		samples = append(samples, levels{begin.Add(time.Duration(i) * time.Second), map[string]float64{name: v}})
	}
	return samples
}

// The slowest and the fastest third bound the growth; without growth in one of them there is none.
func TestGrowthOf(t *testing.T) {
	begin := time.Now()
	for _, c := range []struct {
		values []float64
		want   growth
		ok     bool
	}{
		{[]float64{0, 10, 20, 30, 40, 50, 60}, growth{10, 10, 10}, true},
		{[]float64{0, 5, 10, 30, 50, 60, 70}, growth{70.0 / 6, 5, 20}, true},
		{[]float64{0, 100, 100, 100, 100, 100, 100}, growth{100.0 / 6, 0, 50}, true},
		{[]float64{0, 1, 2}, growth{}, false},
	} {
		if g, ok := growthOf(sampledAt(begin, "/c", c.values...), "/c"); g != c.want || ok != c.ok {
			t.Errorf("%v: %v, %v", c.values, g, ok)
		}
	}
	if _, ok := growthOf(sampledAt(begin, "/c", 0, 1, 2, 3, 4, 5, 6), "/new"); ok {
		t.Error("a group without samples has a growth")
	}
}

// A network namespace's counters are read from its files, and its connections only if there are many.
func TestSockets(t *testing.T) {
	h := Host{Proc: proc.FS(t.TempDir())}
	dir := filepath.Join(string(h.Proc), "7")
	tcp := "sl local rem st\n"
	for range 3 {
		tcp += " 0: 0100007F:C350 0200007F:1F90 06 x\n"
	}
	tcp += " 0: 0100007F:1F90 0100007F:C351 08 x\n"
	for file, text := range map[string]string{
		"7/net/netstat":                   "TcpExt: SyncookiesSent ListenOverflows TCPReqQFullDoCookies TCPReqQFullDrop TCPSynRetrans\nTcpExt: 1 42 20 3 4\nIpExt: A\nIpExt: 2\n",
		"7/net/dev":                       "Inter-| Receive\n face |bytes packets\n    lo: 100 7 0\n  eth0: 100 5 0\n",
		"7/net/sockstat":                  "sockets: used 9\nTCP: inuse 5 orphan 0 tw 995 alloc 7 mem 1\nUDP: inuse 1 mem 0\nFRAG: inuse 3 memory 1000\n",
		"7/net/snmp":                      "Tcp: OutSegs RetransSegs\nTcp: 100 9\nUdp: InDatagrams RcvbufErrors MemErrors\nUdp: 9 8 7\nUdpLite: RcvbufErrors\nUdpLite: 3\n",
		"sys/net/ipv4/ipfrag_high_thresh": "4000\n", "sys/net/ipv4/tcp_max_tw_buckets": "1990\n",
		"7/net/tcp": tcp, "sys/net/ipv4/ip_local_port_range": "50000\t50005\n",
	} {
		file = filepath.Join(string(h.Proc), file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if s := socketsOf(h, dir); s["overflows"] != 42 || s["packets"] != 12 || s["ports"] != 0.5 || s["unclosed"] != 1 || s["fragments"] != 0.25 || s["time-wait"] != 0.5 || s["half open"] != 23 || s["datagrams"] != 8 || s["datagram memory"] != 7 || s["unanswered"] != 4 || s["sent"] != 100 || s["sent again"] != 9 {
		t.Errorf("%v", s)
	}
}

// The fullest queue counts, of a list of sysvipc(7).
func TestFullest(t *testing.T) {
	list := "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      stime      rtime      ctime\n" +
		"         0          0   600         512          1    77     0     0     0     0     0 1700000000          0 1700000000\n" +
		"         0          1   600       16000        250    77    78     0     0     0     0 1700000000 1700000000 1700000000\n"
	if n := fullest(list); n != 16000 {
		t.Errorf("%v bytes", n)
	}
	if n := fullest(""); n != 0 {
		t.Errorf("%v bytes in none", n)
	}
}

// Segments that were sent again are counted without those of handshakes, and only if there are some.
func TestRetransmits(t *testing.T) {
	before := sample{"sent": 1000, "sent again": 10, "unanswered": 5}
	after := space{kind: "net", subject: fact.Subject{Pid: 7, Device: "net:[1]"}, values: sample{"sent": 2000, "sent again": 130, "unanswered": 25}}
	set := &fact.Set{}
	set.Add(retransmits(before, after, 10*time.Second)...)
	again, share := set.Of(fact.Retransmits), set.Of(fact.RetransShare)
	if len(again) != 1 || again[0].Value != 10 || again[0].Subject.Pid != 7 || len(share) != 1 || share[0].Value != 0.1 {
		t.Errorf("%+v, %+v", again, share)
	}
	for what, values := range map[string]sample{
		"handshakes only": {"sent": 2000, "sent again": 30, "unanswered": 25}, "nothing was sent": {"sent": 1000, "sent again": 40, "unanswered": 5}, "unknown": {"sent": 2000},
	} {
		if fs := retransmits(before, space{values: values}, time.Second); len(fs) > 0 {
			t.Errorf("%s: %+v", what, fs)
		}
	}
}

// A process's own limit of files is read if it has many.
func TestFilesShare(t *testing.T) {
	h := Host{Proc: proc.Host}
	if _, ok := filesShare(h, os.Getpid(), filesFrom-1); ok {
		t.Error("few files have a share")
	}
	if share, ok := filesShare(h, os.Getpid(), 1e12); !ok || share <= 1 {
		t.Errorf("%v, %v, for %s", share, ok, fact.ProcessFiles)
	}
}

// Kernel memory that cannot be reclaimed counts on v2. Page cache and v1's kernel memory do not.
func TestHeldMemory(t *testing.T) {
	const id = "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1"
	for name, c := range map[string]struct {
		v2         bool
		used, stat string
		want       float64
	}{
		"v2":                   {true, "memory.current", "anon 1\nfile 1000\nshmem 10\nsock 100\nkernel 9000\nslab_reclaimable 2000\nslab_unreclaimable 3000\n", 7111},
		"v2 before Linux 5.18": {true, "memory.current", "anon 1\nshmem 10\nslab_reclaimable 2000\nslab_unreclaimable 3000\n", 3011},
		"v1":                   {false, "memory.usage_in_bytes", "rss 5\ntotal_rss 1\ntotal_shmem 10\n", 11},
	} {
		m := cgroup.Mount{Point: t.TempDir(), V2: c.v2, Controllers: []string{"memory"}}
		files(t, m.Point, map[string]string{
			id + "/" + c.used: "100000\n", id + "/memory.stat": c.stat, id + "/memory.kmem.usage_in_bytes": "4000\n",
			"service/cgroup.procs": "7\n", "service/" + c.used: "9000\n", "service/memory.stat": c.stat,
			"slice/cgroup.procs": "", "slice/" + c.used: "9000\n", "slice/memory.stat": c.stat,
		})
		h, last := Host{Groups: cgroup.Mounts{m}}, make(heldReader)
		want := map[string]float64{"/" + id: c.want, "/service": c.want}
		if held := last.read(h); !maps.Equal(held, want) {
			t.Errorf("%s: %v, want %v", name, held, want)
		}
		// The other statistics are read again only if the use has changed.
		files(t, m.Point, map[string]string{id + "/memory.stat": "", "service/memory.stat": "", "service/" + c.used: "8000\n"})
		want["/service"] = 0
		if held := last.read(h); !maps.Equal(held, want) {
			t.Errorf("%s, at the second reading: %v, want %v", name, held, want)
		}
	}
}

// The most memory that a container has used is read only while its memory grows.
func TestPeaks(t *testing.T) {
	point := t.TempDir()
	files(t, point, map[string]string{"web/memory.max_usage_in_bytes": "4096\n", "db/memory.max_usage_in_bytes": "9\n"})
	h := Host{Groups: cgroup.Mounts{{Point: t.TempDir(), Root: "/", V2: true}, {Point: point, Root: "/", Controllers: []string{"memory"}}}}
	web, db := fact.Subject{Cgroup: "/web"}, fact.Subject{Cgroup: "/db"}
	fs := withPeaks(h, []fact.Fact{{Name: fact.GroupGrowth, Value: 1, Subject: web}, {Name: fact.GroupHeld, Value: 1, Subject: db}})
	if want := (fact.Fact{Name: fact.GroupPeak, Value: 4096, Unit: fact.Bytes, Subject: web}); len(fs) != 3 || !reflect.DeepEqual(fs[2], want) {
		t.Errorf("%+v", fs)
	}
}
