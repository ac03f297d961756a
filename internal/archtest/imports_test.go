package archtest

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

const module = "holdfast"

// rule is a package, or with /... a tree of packages, and the packages of this module that
// it may import besides itself. The longest matching name applies.
type rule struct {
	name string
	may  []string
}

// rules is the table of the design, in its order. "" is the root package.
var rules = []rule{
	{"", nil},
	{"internal/platform/linux/...", []string{"internal/platform/linux/..."}},
	{"internal/platform/atomicfile", nil},
	{"internal/platform/child", nil},
	{"internal/platform/journal", []string{"internal/platform/atomicfile"}},
	{"internal/platform/boltfile", []string{""}},
	{"internal/platform/keyfile", []string{""}},
	{"internal/platform/strictyaml", []string{""}},
	{"internal/platform/tasks", nil},
	{"internal/platform/coalesce", nil},
	{"internal/platform/frame", nil},
	{"internal/platform/filetree", nil},
	{"internal/platform/metric", nil},
	{"internal/platform/readiness", nil},
	{"internal/platform/sdnotify", nil},
	{"internal/platform/pki", []string{"", "internal/platform/keyfile"}},
	{"internal/platform/store", []string{""}},
	{"internal/platform/store/...", []string{"", "internal/platform/store"}},
	{"internal/platform/store/etcd", []string{"", "internal/platform/store", "internal/platform/tasks"}},
	{"internal/platform/store/embedded", []string{"", "internal/platform/store", "internal/platform/boltfile"}},
	{"internal/platform/store/trace", []string{"", "internal/platform/store", "internal/platform/linux/boottime"}},
	{"internal/platform/engine", []string{"", "internal/platform/linux/owner", "internal/platform/linux/tinyelf"}},
	{"internal/platform/engine/...", []string{"", "internal/platform/engine", "internal/platform/linux/owner", "internal/platform/linux/tinyelf"}},
	{"internal/platform/engine/docker", []string{"", "internal/platform/engine", "internal/platform/linux/owner", "internal/platform/linux/tinyelf", "internal/platform/linux/pidfd"}},
	{"internal/platform/engine/containerd", []string{"", "internal/platform/engine", "internal/platform/linux/boottime", "internal/platform/linux/flock", "internal/platform/linux/pidfd", "internal/platform/linux/proc", "internal/platform/linux/vethnet"}},
	{"internal/sessions/kill", []string{"", "internal/platform/linux/..."}},
	{"internal/sessions/kill/killtest", nil},
	{"internal/sessions/freeze", []string{"internal/sessions/kill", "internal/platform/linux/..."}},
	{"internal/sessions/guardian", []string{"", "internal/sessions/kill", "internal/platform/linux/..."}},
	{"internal/agent/handoff", []string{"", "internal/control/api", "internal/platform/sdnotify", "internal/platform/linux/boottime", "internal/platform/linux/connfd", "internal/platform/linux/listenfd"}},
	{"internal/sessions/hook", []string{"internal/platform/linux/..."}},
	{"internal/sessions/commands", []string{"", "internal/platform/engine", "internal/platform/frame", "internal/platform/linux/..."}},
	{"internal/sessions/files", []string{"", "internal/platform/frame", "internal/platform/linux/..."}},
	{"internal/sessions/events", []string{""}},
	{"internal/sessions/deadman", []string{"", "internal/sessions/kill", "internal/platform/linux/..."}},
	// boottime: deadlines that other nodes rely on continue while the host sleeps.
	{"internal/hosts/spinup", []string{"", "internal/platform/engine"}},
	{"internal/hosts/spinup/puller", []string{"", "internal/platform/coalesce", "internal/platform/engine", "internal/hosts/spinup"}},
	{"internal/hosts/spinup/prefetch", []string{"", "internal/platform/engine"}},
	{"internal/hosts/spinup/recorder", []string{"", "internal/platform/engine", "internal/hosts/spinup", "internal/hosts/spinup/others", "internal/hosts/spinup/underway", "internal/hosts/doctor/ranking", "internal/platform/linux/boottime"}},
	{"internal/hosts/spinup/others", []string{"", "internal/platform/engine", "internal/hosts/spinup"}},
	{"internal/hosts/spinup/fleetstats", []string{"", "internal/hosts/spinup"}},
	{"internal/hosts/spinup/experiment", []string{"", "internal/platform/store", "internal/hosts/spinup"}},
	{"internal/hosts/spinup/underway", []string{"", "internal/platform/linux/boottime", "internal/platform/linux/proc"}},
	{"internal/hosts/job", []string{"", "internal/platform/strictyaml", "internal/platform/engine", "internal/hosts/spinup", "internal/platform/linux/cgroup", "internal/platform/linux/owner", "internal/platform/linux/proc"}},
	{"internal/hosts/job/spread", []string{""}},
	{"internal/hosts/gc", []string{"", "internal/platform/engine"}},
	{"internal/sessions/pool", []string{"internal/platform/engine", "internal/sessions/kill"}},
	{"internal/sessions/pool/network", []string{"", "internal/platform/engine", "internal/sessions/kill", "internal/sessions/pool", "internal/platform/linux/..."}},
	{"internal/sessions/pool/container", []string{"", "internal/platform/engine", "internal/sessions/kill", "internal/sessions/pool", "internal/platform/linux/..."}},
	{"internal/sessions/runtimes", []string{"", "internal/platform/engine", "internal/sessions/session"}},
	{"internal/platform/runsc", []string{"", "internal/platform/linux/deathsig", "internal/platform/linux/proc"}},
	{"internal/sessions/move", []string{"", "internal/platform/atomicfile", "internal/sessions/move/budget", "internal/sessions/hook", "internal/sessions/kill", "internal/platform/keyfile", "internal/platform/linux/hostload", "internal/platform/linux/proc", "internal/platform/runsc", "internal/platform/store"}},
	{"internal/sessions/move/budget", nil},
	{"internal/sessions/fork", []string{"", "internal/platform/store", "internal/sessions/move"}},
	{"internal/sessions/session", []string{"", "internal/platform/store", "internal/platform/engine", "internal/hosts/spinup", "internal/sessions/kill", "internal/sessions/hook", "internal/sessions/move", "internal/sessions/pool", "internal/sessions/freeze", "internal/platform/tasks", "internal/platform/linux/boottime", "internal/platform/linux/frozen", "internal/platform/linux/neigh", "internal/platform/linux/uts"}},
	{"internal/sessions/gateway/...", []string{"", "internal/sessions/gateway/...", "internal/platform/tasks", "internal/platform/keyfile", "internal/platform/linux/connfd"}},
	{"internal/sessions/fleet", []string{"", "internal/platform/store", "internal/platform/tasks"}},
	{"internal/sessions/drain", []string{"", "internal/platform/engine", "internal/sessions/fleet", "internal/sessions/kill", "internal/sessions/session"}},
	{"internal/hosts/protect/...", []string{"", "internal/platform/tasks", "internal/platform/linux/...", "internal/hosts/protect/..."}},
	{"internal/sessions/replace", []string{"", "internal/platform/store", "internal/sessions/fleet", "internal/sessions/session"}},
	{"internal/sessions/group", []string{"", "internal/platform/store", "internal/platform/coalesce", "internal/sessions/replace"}},
	{"internal/sessions/preempt", []string{"", "internal/sessions/drain"}},
	{"internal/hosts/kube/cri", []string{"", "internal/platform/engine"}},
	{"internal/hosts/kube/podwatch", []string{"", "internal/hosts/kube", "internal/hosts/kube/cri", "internal/hosts/spinup", "internal/platform/tasks"}},
	{"internal/hosts/kube/...", []string{"", "internal/hosts/kube/...", "internal/hosts/doctor/ranking"}},
	{"internal/hosts/doctor/...", []string{"", "internal/hosts/doctor/...", "internal/platform/engine", "internal/platform/linux/..."}},
	{"internal/hosts/doctor/service", []string{"", "internal/hosts/doctor/...", "internal/platform/engine", "internal/platform/linux/...", "internal/platform/store", "internal/platform/tasks"}},
	{"internal/hosts/doctor/fact", nil},
	{"internal/hosts/doctor/rule", []string{"internal/hosts/doctor/fact"}},
	{"internal/control/api", []string{"", "internal/platform/frame", "internal/platform/keyfile", "internal/hosts/gc", "internal/hosts/job", "internal/hosts/spinup", "internal/hosts/spinup/experiment", "internal/hosts/spinup/underway", "internal/hosts/spinup/prefetch", "internal/hosts/doctor/...", "internal/hosts/protect", "internal/hosts/protect/history"}},
	{"internal/control/api/client", []string{"", "internal/control/api", "internal/platform/frame", "internal/hosts/gc", "internal/hosts/job", "internal/hosts/spinup", "internal/hosts/spinup/experiment", "internal/hosts/spinup/underway", "internal/hosts/spinup/prefetch", "internal/hosts/doctor/..."}},
	{"internal/control/api/apitest", []string{"", "internal/control/api", "internal/platform/frame", "internal/hosts/gc", "internal/hosts/job", "internal/hosts/spinup", "internal/hosts/spinup/experiment", "internal/hosts/spinup/underway", "internal/hosts/spinup/prefetch", "internal/hosts/doctor/..."}},
	{"internal/control/dashboard", []string{"", "internal/control/api", "internal/hosts/gc", "internal/hosts/spinup", "internal/hosts/spinup/underway", "internal/hosts/doctor/..."}},
	{"client", []string{"", "internal/platform/frame"}},
	{"internal/control/e2b", []string{"", "internal/control/api", "internal/control/api/client", "internal/control/e2b/envd", "internal/platform/frame", "internal/platform/keyfile", "internal/platform/store"}},
	{"internal/control/e2b/envd", nil},
	{"internal/control/mcp", []string{"", "internal/control/api", "internal/control/api/client", "internal/platform/frame", "internal/hosts/gc", "internal/hosts/spinup", "internal/hosts/doctor", "internal/hosts/doctor/fact"}},
	{"internal/control/config", []string{"", "internal/platform/strictyaml", "internal/platform/engine", "internal/sessions/group", "internal/sessions/session", "internal/sessions/pool/network", "internal/sessions/pool/container", "internal/sessions/gateway", "internal/sessions/preempt", "internal/hosts/gc", "internal/hosts/spinup", "internal/hosts/spinup/experiment", "internal/hosts/spinup/prefetch", "internal/hosts/doctor/watch", "internal/hosts/doctor/rotation", "internal/hosts/doctor/schedule"}},
	{"test/lab/...", []string{"", "internal/platform/engine/...", "internal/platform/linux/...", "test/lab/..."}},
	{"bench/...", []string{"", "bench/...", "client", "internal/...", "test/lab/...", "test/check"}},
	{"internal/agent/...", []string{"", "internal/..."}},
	{"internal/control/cli", []string{"", "internal/..."}},
	{"internal/archtest", nil},
	{"cmd/holdfast", []string{"", "internal/..."}},
	{"cmd/holdfast-bench", []string{"", "internal/...", "bench/...", "test/lab/..."}},
	{"demo/...", []string{"demo/..."}},
	{"examples/...", []string{"", "client"}},
	{"test/check", []string{"", "internal/platform/store/trace"}},
	{"test/...", []string{"", "internal/...", "test/..."}},
	{"packaging/...", nil},
}

// libraries are small packages that are independent of the product. Every package may
// import them, except the packages of the kernel interface, the root package and the
// packages that the libraries import.
var libraries = []string{"internal/platform/atomicfile", "internal/platform/boltfile", "internal/platform/child", "internal/platform/filetree", "internal/platform/journal", "internal/platform/metric", "internal/platform/readiness", "internal/platform/tasks"}

// assemblers are the top packages and the tools of tests. No lower package imports them.
var assemblers = map[string][]string{
	"internal/agent":       {"internal/agent", "internal/control/cli", "bench", "cmd", "test"},
	"internal/control/cli": {"internal/control/cli", "cmd", "test"},
	"bench":                {"bench", "cmd", "test"},
	"test":                 {"test", "bench", "cmd"},
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
		r := ruleOf(from)
		if r == nil {
			t.Errorf("%s has no rule in the table", p.PkgPath)
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

// wings are the directories of internal, each with those that its packages may import.
// Exceptions have their reason beside them.
var wings = map[string][]string{
	"internal/platform": {"", "internal/platform"},
	"internal/hosts":    {"", "internal/platform", "internal/hosts"},
	// A session records its boot as a spin-up.
	"internal/sessions": {"", "internal/platform", "internal/sessions", "internal/hosts/spinup"},
	"internal/control":  {"", "internal"},
	"internal/agent":    {"", "internal"},
}

// Imports between the directories of internal point one way (docs/adr/wings.md).
func TestWings(t *testing.T) {
	n := 0
	for _, s := range sources(t) {
		for wing, may := range wings {
			if s.isTest() || !within(s.dir(), wing+"/...") || testKit(s.dir()) {
				continue
			}
			for _, i := range s.ast.Imports {
				to, ours := inModule(strings.Trim(i.Path.Value, `"`))
				if !ours {
					continue
				}
				n++
				if !slices.ContainsFunc(may, func(m string) bool { return m == to || m != "" && within(to, m+"/...") }) {
					t.Errorf("%s may not import %s", s.path, to)
				}
			}
		}
	}
	if n < 500 {
		t.Errorf("only %d imports were found", n)
	}
}

// testKit reports whether a package is for tests only: it has the name of the package
// beside it, with the suffix test.
func testKit(dir string) bool { return strings.HasSuffix(dir, "test") }

// TestTableIsHeld shows that the check above can fail.
func TestTableIsHeld(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"internal/sessions/session", "internal/sessions/kill", true},
		{"internal/sessions/session", "internal/sessions/gateway", false},
		{"internal/sessions/gateway", "internal/sessions/session", false},
		{"internal/platform/store/etcd", "test/memstore", false},
		{"internal/platform/linux/pidfd", "", false},
		{"internal/control/config", "internal/agent", false},
		{"internal/agent", "internal/control/cli", false},
		{"internal/control/cli", "internal/agent", true},
		{"internal/sessions/kill", "test/vm", false},
		{"", "internal/sessions/kill", false},
		{"internal/hosts/gc", "internal/platform/journal", true},
		{"internal/platform/linux/pidfd", "internal/platform/journal", false},
		{"internal/platform/atomicfile", "internal/platform/boltfile", false},
	} {
		if got := allowed(*ruleOf(c.from), c.from, c.to); got != c.want {
			t.Errorf("%q imports %q: allowed is %v, want %v", c.from, c.to, got, c.want)
		}
	}
}

// inModule returns the path below the module's root, and whether the package is in the
// module.
func inModule(path string) (string, bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}

func ruleOf(pkg string) *rule {
	var best *rule
	for i, r := range rules {
		if within(pkg, r.name) && (best == nil || len(r.name) > len(best.name)) {
			best = &rules[i]
		}
	}
	return best
}

func within(pkg, pattern string) bool {
	tree, isTree := strings.CutSuffix(pattern, "/...")
	return pkg == pattern || isTree && (pkg == tree || strings.HasPrefix(pkg, tree+"/"))
}

func allowed(r rule, from, to string) bool {
	if from == to {
		return true
	}
	for top, importers := range assemblers {
		if within(to, top+"/...") && !slices.ContainsFunc(importers, func(w string) bool { return within(from, w+"/...") }) {
			return false
		}
	}
	if slices.Contains(libraries, to) && from != "" && !within(from, "internal/platform/linux/...") && !slices.Contains(libraries, from) {
		return true
	}
	return slices.ContainsFunc(r.may, func(pattern string) bool { return within(to, pattern) })
}
