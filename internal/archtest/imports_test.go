package archtest

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

const module = "holdfast"

// room is a package, or with /... a tree of them, and what of this module it
// may import besides itself. The longest name that fits counts.
type room struct {
	name string
	may  []string
}

// house is the table of the design, in its order. "" is the root package.
var house = []room{
	{"", nil},
	{"internal/linux/...", []string{"internal/linux/..."}},
	{"internal/keyfile", []string{""}},
	{"internal/strictyaml", []string{""}},
	{"internal/pki", []string{"", "internal/keyfile"}},
	{"internal/store", []string{""}},
	{"internal/store/...", []string{"", "internal/store"}},
	{"internal/store/trace", []string{"", "internal/store", "internal/linux/boottime"}},
	{"internal/check", []string{""}},
	{"internal/engine", []string{""}},
	{"internal/engine/...", []string{"", "internal/engine"}},
	{"internal/engine/containerd", []string{"", "internal/engine", "internal/linux/boottime", "internal/linux/flock", "internal/linux/pidfd", "internal/linux/proc", "internal/linux/vethnet"}},
	{"internal/kill", []string{"", "internal/linux/..."}},
	{"internal/kill/killtest", nil},
	{"internal/guardian", []string{"", "internal/kill", "internal/linux/..."}},
	{"internal/succession", []string{"", "internal/linux/listenfd"}},
	{"internal/hook", []string{"internal/linux/..."}},
	{"internal/deadman", []string{"", "internal/kill", "internal/linux/..."}},
	// boottime: deadlines that other nodes rely on go on while the host sleeps.
	{"internal/spinup", []string{"", "internal/engine"}},
	{"internal/spinup/puller", []string{"", "internal/engine", "internal/spinup"}},
	{"internal/spinup/warm", []string{"", "internal/engine"}},
	{"internal/spinup/others", []string{"", "internal/engine", "internal/spinup"}},
	{"internal/spinup/underway", []string{"", "internal/linux/boottime", "internal/linux/kfile"}},
	{"internal/job", []string{"", "internal/strictyaml", "internal/engine", "internal/spinup", "internal/linux/cgroup", "internal/linux/kfile", "internal/linux/proc"}},
	{"internal/gc", []string{"", "internal/engine"}},
	{"internal/quiet", nil},
	{"internal/netpool", []string{"", "internal/engine", "internal/kill", "internal/quiet", "internal/linux/..."}},
	{"internal/warmpool", []string{"", "internal/engine", "internal/kill", "internal/quiet", "internal/linux/..."}},
	{"internal/runtimes", []string{"", "internal/engine"}},
	{"internal/runsc", []string{"", "internal/linux/deathsig"}},
	{"internal/move", []string{""}},
	{"internal/move/budget", nil},
	{"internal/session", []string{"", "internal/store", "internal/engine", "internal/spinup", "internal/kill", "internal/hook", "internal/linux/boottime", "internal/linux/neigh", "internal/linux/uts"}},
	{"internal/gateway/...", []string{"", "internal/gateway/...", "internal/keyfile"}},
	{"internal/fleet", []string{"", "internal/store"}},
	{"internal/drain", []string{""}},
	{"internal/protect/...", []string{"", "internal/linux/...", "internal/protect/..."}},
	{"internal/replace", []string{""}},
	{"internal/preempt", []string{""}},
	{"internal/kube/cri", []string{"", "internal/engine"}},
	{"internal/kube/podwatch", []string{"", "internal/kube", "internal/kube/cri", "internal/spinup"}},
	{"internal/kube/...", []string{"", "internal/kube/...", "internal/doctor/ranking"}},
	{"internal/doctor/...", []string{"", "internal/doctor/...", "internal/engine", "internal/linux/..."}},
	{"internal/doctor/fact", nil},
	{"internal/doctor/rule", []string{"internal/doctor/fact"}},
	{"internal/api", []string{"", "internal/api/frame", "internal/keyfile", "internal/gc", "internal/spinup", "internal/spinup/underway", "internal/doctor/..."}},
	{"internal/api/frame", nil},
	{"internal/api/client", []string{"", "internal/api", "internal/api/frame", "internal/gc", "internal/spinup", "internal/spinup/underway", "internal/doctor/..."}},
	{"internal/api/apitest", []string{"", "internal/api", "internal/gc", "internal/spinup", "internal/spinup/underway", "internal/doctor/..."}},
	{"internal/dashboard", []string{"", "internal/api", "internal/gc", "internal/spinup", "internal/spinup/underway", "internal/doctor/..."}},
	{"internal/config", []string{"", "internal/strictyaml", "internal/engine", "internal/session", "internal/netpool", "internal/warmpool", "internal/gateway", "internal/preempt", "internal/gc", "internal/spinup", "internal/spinup/warm", "internal/doctor/watch", "internal/doctor/rotation"}},
	{"internal/lab/...", []string{"", "internal/engine/...", "internal/linux/...", "internal/lab/..."}},
	{"internal/bench/...", []string{"", "internal/..."}},
	{"internal/agent", []string{"", "internal/..."}},
	{"internal/cli", []string{"", "internal/..."}},
	{"internal/archtest", nil},
	{"cmd/...", []string{"", "internal/..."}},
	{"demo/...", []string{"demo/..."}},
	{"test/...", []string{"", "internal/...", "test/..."}},
	{"packaging/...", nil},
}

// above are the assemblers and the tests' tools: nobody below imports them.
var above = map[string][]string{
	"internal/agent": {"internal/agent", "internal/cli", "internal/bench", "cmd", "test"},
	"internal/cli":   {"internal/cli", "cmd", "test"},
	"internal/bench": {"internal/bench", "internal/cli", "cmd", "test"},
	"internal/lab":   {"internal/lab", "internal/bench", "internal/cli", "cmd", "test"},
	// Its runner of virtual machines is for tests, which this check does not see.
	"internal/linux/vm": {"internal/linux/vm"},
}

func TestImportsPointUpward(t *testing.T) {
	pkgs, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedImports, Dir: "../..",
	}, "./...")
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) < 5 {
		t.Fatalf("only %d packages were found", len(pkgs))
	}
	for _, p := range pkgs {
		from, _ := inModule(p.PkgPath)
		r := roomOf(from)
		if r == nil {
			t.Errorf("%s has no room in the table", p.PkgPath)
			continue
		}
		for path := range p.Imports {
			to, ours := inModule(path)
			if ours && !allowed(*r, from, to) {
				t.Errorf("%s may not import %s", p.PkgPath, path)
			}
		}
	}
}

// TestTableIsHeld shows that the check above can fail.
func TestTableIsHeld(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"internal/session", "internal/kill", true},
		{"internal/session", "internal/gateway", false},
		{"internal/gateway", "internal/session", false},
		{"internal/store/etcd", "internal/store/memory", false},
		{"internal/linux/pidfd", "", false},
		{"internal/config", "internal/agent", false},
		{"internal/agent", "internal/cli", false},
		{"internal/cli", "internal/agent", true},
		{"internal/kill", "internal/linux/vm", false},
		{"", "internal/kill", false},
	} {
		if got := allowed(*roomOf(c.from), c.from, c.to); got != c.want {
			t.Errorf("%q imports %q: allowed is %v, want %v", c.from, c.to, got, c.want)
		}
	}
}

// inModule is the path below the module's root, and whether it is in it.
func inModule(path string) (string, bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}

func roomOf(pkg string) *room {
	var best *room
	for i, r := range house {
		if within(pkg, r.name) && (best == nil || len(r.name) > len(best.name)) {
			best = &house[i]
		}
	}
	return best
}

func within(pkg, pattern string) bool {
	tree, isTree := strings.CutSuffix(pattern, "/...")
	return pkg == pattern || isTree && (pkg == tree || strings.HasPrefix(pkg, tree+"/"))
}

func allowed(r room, from, to string) bool {
	if from == to {
		return true
	}
	for top, who := range above {
		if within(to, top+"/...") && !slices.ContainsFunc(who, func(w string) bool { return within(from, w+"/...") }) {
			return false
		}
	}
	return slices.ContainsFunc(r.may, func(pattern string) bool { return within(to, pattern) })
}
