package probe

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/hosts/doctor/fact"
	"holdfast/internal/platform/linux/proc"
)

// files writes files below a directory.
func files(t *testing.T, root string, of map[string]string) {
	t.Helper()
	for file, text := range of {
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A process with over half of the mappings that it may have is a fact, and others are not.
func TestMappings(t *testing.T) {
	h := Host{Proc: proc.Host}
	most, err := number("/proc/sys/vm/max_map_count")
	if err != nil {
		t.Fatal(err)
	}
	mine := func() *fact.Fact {
		all := mappingsShares(h, mappings(t.Context(), h, mapsFrom))
		i := slices.IndexFunc(all, func(f fact.Fact) bool { return f.Name == fact.ProcessMaps && f.Subject.Pid == os.Getpid() })
		if i < 0 {
			return nil
		}
		return &all[i]
	}
	if f := mine(); f != nil {
		t.Errorf("a process with few: %+v", f)
	}
	if most > 1<<20 {
		t.Skip("this host allows a process more mappings than a test should make")
	}
	// Neighbours differ in their protection, so the kernel cannot join them.
	n := int(most * 0.6)
	all, err := unix.Mmap(-1, 0, n*os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(all); err != nil {
			t.Error(err)
		}
	}()
	for i := 0; i < n; i += 2 {
		if err := unix.Mprotect(all[i*os.Getpagesize():(i+1)*os.Getpagesize()], unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	if f := mine(); f == nil || f.Value < 0.59 || f.Value > 0.65 || f.Subject.Command == "" {
		t.Errorf("of 60 %%: %+v", f)
	}
}

// A table over its soft limit at both ends is a fact with the namespace that has most; removals
// are counted.
func TestNeighbours(t *testing.T) {
	root := t.TempDir()
	h := Host{Proc: proc.FS(root)}
	table := func(entries, runs string) {
		files(t, root, map[string]string{"net/stat/arp_cache": "entries  allocs forced_gc_runs table_fulls\n" +
			entries + " 0000e298 " + runs + " 00000000\n" + entries + " 00000000 00000001 00000000\n"})
	}
	files(t, root, map[string]string{
		"sys/net/ipv4/neigh/default/gc_thresh2": "512\n", "7/net/arp": "IP address\n10.0.0.1\n10.0.0.2\n", "8/net/arp": "IP address\n",
	})
	table("00000388", "00000002")
	s, err := neighboursProbe().Open(t.Context(), h, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	table("00000389", "00000004")
	fs, err := s.Read(t.Context(), time.Now().Add(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	set := &fact.Set{}
	set.Add(fs...)
	soft, gc := set.Of(fact.NeighbourSoft), set.Of(fact.NeighbourGC)
	if len(soft) != 1 || soft[0].Value != 904.0/512 || soft[0].Subject.Pid != 7 || soft[0].Subject.Device != LimitNeighbours {
		t.Errorf("%+v", soft)
	}
	if len(gc) != 1 || gc[0].Value < 0.19 || gc[0].Value > 0.21 {
		t.Errorf("two removals in 10 s: %+v", gc)
	}
	if got := neighbourCounters("entries\n"); got != nil {
		t.Errorf("a table without CPUs: %v", got)
	}
	if got := neighbourCounters("entries\nxyz\n"); got != nil {
		t.Errorf("garbage: %v", got)
	}
}

// The data of a connection that its process has closed is found, and counted as left.
func TestQueues(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	all, left := queuesOf("/proc/self")
	sent := 0
	for { // until both queues are full
		if err := server.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := server.Write(make([]byte, 1<<16))
		if sent += n; err != nil {
			break
		}
	}
	server.Close()
	all2, left2 := queuesOf("/proc/self")
	// Other sockets of this host have data, too, but not for long.
	if all2-all < float64(sent)*0.9 || left2-left < 1<<16 {
		t.Errorf("%d bytes sent; all %v to %v, left %v to %v", sent, all, all2, left, left2)
	}
	if _, err := io.Copy(io.Discard, client); err != nil {
		t.Error(err)
	}
	s, err := tcpSockets(Host{Proc: proc.Host})
	if err != nil || s["inuse"] < 1 || s["mem"] < 0 {
		t.Errorf("%v, %v", s, err)
	}
}

// While the memory of sockets grows towards the limit, the namespace with most data is a fact;
// a process of the host's namespace is not named.
func TestSocketMemory(t *testing.T) {
	root := t.TempDir()
	h := Host{Proc: proc.FS(root)}
	const line = "   1: 0100007F:BA75 0100007F:8CB4 04 00040A01:00000010 04:00000005 00000000     0        1 %s 2 0\n"
	files(t, root, map[string]string{
		"sys/net/ipv4/tcp_mem": "287898\t383867\t575796\n", "sys/net/ipv4/tcp_max_orphans": "131072\n",
		"7/net/tcp": "  sl  local_address rem_address   st tx_queue rx_queue\n" + strings.ReplaceAll(line, "%s", "0"), "1/net/tcp": strings.ReplaceAll(line, "%s", "77"),
	})
	for pid, ns := range map[string]string{"1": "net:[1]", "7": "net:[7]"} {
		if err := os.MkdirAll(filepath.Join(root, pid, "ns"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(ns, filepath.Join(root, pid, "ns/net")); err != nil {
			t.Fatal(err)
		}
	}
	samples := func(each float64) (all []levels) {
		at := time.Now()
		for i := range 12 {
			all = append(all, levels{at.Add(time.Duration(i) * time.Second), map[string]float64{"mem": 50<<20 + float64(i)*each, "orphan": float64(i)}})
		}
		return all
	}
	facts := func(each float64) *fact.Set {
		s := &fact.Set{}
		s.Add(socketFacts(t.Context(), h, samples(each))...)
		return s
	}
	h2 := Host{Proc: proc.FS(t.TempDir())}
	files(t, string(h2.Proc), map[string]string{"meminfo": "MemTotal: 16000000 kB\n"})
	if limit, err := socketLimit(h2); err != nil || limit != 1_024_000_000 {
		t.Errorf("in another namespace: %v, %v", limit, err)
	}
	if s := facts(0); !s.Has(fact.SocketMemory) || s.Has(fact.SocketQueued) || s.Has(fact.SocketGrowth) {
		t.Errorf("at rest: %+v", s.Facts)
	}
	s := facts(8 << 20)
	queued, left := s.Of(fact.SocketQueued), s.Of(fact.SocketLeft)
	if len(queued) != 2 || len(left) != 2 || left[0].Value != 0x40a11 || left[0].Subject.Pid != 7 || left[1].Value != 0 || left[1].Subject.Pid != 0 {
		t.Errorf("growing: %+v", s.Facts)
	}
	if g := s.Of(fact.SocketLow); len(g) != 1 || g[0].Value < 7<<20 || g[0].Value > 9<<20 {
		t.Errorf("growth: %+v", g)
	}
}

// The CPU time of ksmd is a fact, and with it the memory that processes offer. A process of its
// name is not the kernel's thread, and one that has just begun has no rate.
func TestMerging(t *testing.T) {
	root := t.TempDir()
	h := Host{Proc: proc.FS(filepath.Join(root, "proc")), Sys: filepath.Join(root, "sys")}
	stat := func(pid, flags string) string {
		return pid + " (ksmd) S 2 0 0 0 -1 " + flags + strings.Repeat(" 0", 12) + " 5 0 0\n"
	}
	files(t, root, map[string]string{
		"sys/kernel/mm/ksm/run": "1\n", "sys/kernel/mm/ksm/pages_scanned": "1000\n",
		"proc/6/stat": stat("6", "4194304"), "proc/6/schedstat": "9 9 9\n", "proc/6/ksm_stat": "ksm_rmap_items 1000\nksm_zero_pages 0\n",
		"proc/27/stat": stat("27", "2097216"), "proc/27/schedstat": "1000000000 5 5\n",
	})
	s, err := mergingProbe().Open(t.Context(), h, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	files(t, root, map[string]string{"proc/27/schedstat": "6000000000 5 5\n", "sys/kernel/mm/ksm/pages_scanned": "501000\n"})
	fs, err := s.Read(t.Context(), time.Now().Add(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	set := &fact.Set{}
	set.Add(fs...)
	cpu, _ := set.Host(fact.MergingCPU)
	scanned, _ := set.Host(fact.MergingScanned)
	by := set.Of(fact.MergingBy)
	if cpu < 0.49 || cpu > 0.51 || scanned < 49_000 || scanned > 51_000 || len(by) != 1 || by[0].Subject.Pid != 6 || by[0].Value != float64(1000*os.Getpagesize()) {
		t.Errorf("%+v", fs)
	}
	for _, run := range []string{"0\n", "1\n"} { // it stops, and begins to run
		files(t, root, map[string]string{"sys/kernel/mm/ksm/run": run})
		if fs, err := s.Read(t.Context(), time.Now().Add(20*time.Second)); err != nil || len(fs) != 1 || fs[0].Name != fact.MergingSeen {
			t.Errorf("%q: %+v, %v", run, fs, err)
		}
		time.Sleep(time.Millisecond)
	}
	if err := os.Remove(filepath.Join(root, "proc/27/stat")); err != nil { // another pid namespace
		t.Fatal(err)
	}
	if s, err := readMerging(t.Context(), h); err != nil || len(s) != 1 || s["scanned"] != 501_000 {
		t.Errorf("only the pages are known: %v, %v", s, err)
	}
}
