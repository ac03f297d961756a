package profile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast/test/lab/labtest"
	"holdfast/test/poll"
)

// language is a program that spends its time in a function of its own, or of a library
// that this function calls.
type language struct {
	name string
	how  string // how the program is compiled and run
	long bool   // only in the long form
	// elsewhere means that Debian has no package of it: without it the row is not tested.
	elsewhere bool
	// make returns the command, or an error that says what is not installed.
	make func(t *testing.T, dir string) (*exec.Cmd, error)
	// warm prepares the running program; may be nil.
	warm func(t *testing.T, pid int)
	// function and caller are parts of the names that have to be in a stack, the caller
	// outside of the function. An empty caller is not found: none says why.
	function, caller, none string
}

// compiled returns a make that runs a compiler, and then other commands, for a file of
// testdata/languages. OUT in an argument is the path of the program.
func compiled(source string, commands ...string) func(*testing.T, string) (*exec.Cmd, error) {
	return func(t *testing.T, dir string) (*exec.Cmd, error) {
		out := filepath.Join(dir, "cart")
		for i, line := range commands {
			args := strings.Fields(strings.ReplaceAll(line, "OUT", out))
			if _, err := exec.LookPath(args[0]); err != nil {
				return nil, err
			}
			if i == 0 {
				args = append(args, "testdata/languages/"+source)
			}
			if msg, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", line, err, msg)
			}
		}
		return exec.Command(out), nil
	}
}

// interpreted returns a make that runs a script of testdata/languages with an interpreter
// and its flags, in dir: Node.js writes a log into its working directory.
func interpreted(find func() (string, error), script string, flags ...string) func(*testing.T, string) (*exec.Cmd, error) {
	return func(_ *testing.T, dir string) (*exec.Cmd, error) {
		program, err := find()
		if err != nil {
			return nil, err
		}
		path, err := filepath.Abs("testdata/languages/" + script)
		cmd := exec.Command(program, append(slices.Clone(flags), path)...)
		cmd.Dir = dir
		return cmd, err
	}
}

func inPath(name string) func() (string, error) {
	return func() (string, error) { return exec.LookPath(name) }
}

// newPython finds a Python that writes perf maps.
func newPython() (string, error) {
	for _, version := range []string{"3.12", "3.13", "3.14"} {
		if p, err := exec.LookPath("python" + version); err == nil && exec.Command(p, "--version").Run() == nil {
			return p, nil
		}
		if found, _ := filepath.Glob(os.Getenv("HOME") + "/.pyenv/versions/" + version + ".*/bin/python"); len(found) > 0 {
			return found[0], nil
		}
	}
	return "", errors.New("Python 3.12 or later is not installed")
}

// perfMap makes a Java program write its perf map.
func perfMap(t *testing.T, pid int) {
	jcmd, err := exec.LookPath("jcmd")
	if err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "the function is compiled and in the map", func() bool {
		_ = exec.CommandContext(t.Context(), jcmd, fmt.Sprint(pid), "Compiler.perfmap").Run() // fails until Java has started
		text, _ := os.ReadFile(fmt.Sprintf("/tmp/perf-%d.map", pid))
		return strings.Contains(string(text), "Cart.total") && strings.Contains(string(text), "Cart.checkout")
	})
}

// Why callers have no names.
const (
	noPerfMap    = "the interpreter writes no perf map"
	noTrampoline = "the code that Python makes for each function has no tables: its callers need an interpreter with frame pointers"
)

func languages() []language {
	return []language{
		{name: "C", how: "`gcc -O2`", function: "qsort", caller: "cart_checkout", make: compiled("cart.c", "gcc -O2 -o OUT")},
		{name: "C", how: "stripped, symbols beside it (debug link)", function: "cart_total", caller: "cart_checkout",
			make: compiled("cart.c", "gcc -O2 -g -Wl,--build-id=none -o OUT", "objcopy --only-keep-debug OUT OUT.debug", "strip OUT", "objcopy --add-gnu-debuglink=OUT.debug OUT")},
		{name: "C", how: "`-static`", function: "cart_total", caller: "cart_checkout", make: compiled("cart.c", "gcc -O2 -static -o OUT")},
		{name: "C", how: "in a signal handler", function: "handle_alarm", caller: "cart_checkout", make: compiled("signal.c", "gcc -O2 -o OUT")},
		{name: "C", how: "`-fno-asynchronous-unwind-tables -g` (.debug_frame)", long: true, function: "cart_total", caller: "cart_checkout",
			make: compiled("cart.c", "gcc -O2 -g -fno-asynchronous-unwind-tables -o OUT")},
		{name: "C", how: "`musl-gcc -O2`, in a system call", function: "posix_fadvise", caller: "cart_checkout", make: compiled("fadvise.c", "musl-gcc -O2 -o OUT")},
		{name: "C++", how: "`g++ -O2`", function: "shop::(anonymous namespace)::Cart::total", caller: "shop::(anonymous namespace)::Cart::checkout",
			make: compiled("cart.cc", "g++ -O2 -fno-inline-functions -o OUT")},
		{name: "Rust", how: "`rustc -O`", long: true, function: "cart::Cart::total", caller: "cart::Cart::checkout", make: compiled("cart.rs", "rustc -O -o OUT")},
		{name: "Go", how: "`go build -ldflags='-s -w'`", long: true, function: "main.burnHere", caller: "main.main",
			make: func(t *testing.T, _ string) (*exec.Cmd, error) { return exec.Command(burner(t), "user"), nil }},
		{name: "Node.js", how: "`node --perf-basic-prof`, compiled functions", long: true, function: "cartTotal", caller: "cartCheckout",
			make: interpreted(inPath("node"), "cart.js", "--perf-basic-prof", "--no-turbo-inlining")},
		{name: "Java", how: "`-XX:+PreserveFramePointer`, and a perf map (`jcmd PID Compiler.perfmap`)", long: true, warm: perfMap, function: "Cart.total", caller: "Cart.checkout",
			make: interpreted(inPath("java"), "Cart.java", "-XX:+PreserveFramePointer", "-Xmx64m", "-XX:CompileCommand=quiet", "-XX:CompileCommand=dontinline,Cart::*")},
		{name: "Python", how: "before 3.12, or without `-X perf`", long: true, function: "_PyEval_EvalFrameDefault", none: noPerfMap,
			make: interpreted(inPath("python3"), "cart.py")},
		{name: "Python", how: "3.12 and later, `python -X perf`", long: true, elsewhere: true, function: "py::cart_total", none: noTrampoline,
			make: interpreted(newPython, "cart.py", "-X", "perf")},
	}
}

// Functions and their callers have names in real programs of many languages.
func TestLanguages(t *testing.T) {
	labtest.Engine(t)                 // requires root
	running := make(map[int]language) // by pid
	for _, l := range languages() {
		if l.long && !labtest.Long() {
			continue
		}
		cmd, err := l.make(t, t.TempDir())
		if err != nil {
			if labtest.Long() && !l.elsewhere {
				t.Errorf("%s, %s: %v", l.name, l.how, err)
			} else {
				t.Logf("%s, %s is not tested: %v", l.name, l.how, err)
			}
			continue
		}
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
		})
		if l.warm != nil {
			l.warm(t, cmd.Process.Pid)
		}
		running[cmd.Process.Pid] = l
	}
	r := recorder(t, nil)
	r.NoEngine = errors.New("this test has none")
	for range 5 { // on busy CPUs some program may not run in one recording
		p, err := r.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for pid, l := range running {
			if check(t, p, pid, l) {
				delete(running, pid)
			}
		}
		if len(running) == 0 {
			return
		}
	}
	for _, l := range running {
		t.Errorf("%s, %s: %s is in no stack", l.name, l.how, l.function)
	}
}

// check looks for the names in a process's stacks, and reports whether its function is in one.
func check(t *testing.T, p *Profile, pid int, l language) bool {
	t.Helper()
	seen, called, example := 0, 0, []string(nil)
	for _, s := range p.Samples {
		names := p.names(s)
		at := slices.IndexFunc(names, func(n string) bool { return strings.Contains(n, l.function) })
		if s.Task.Pid != pid || at < 0 {
			continue
		}
		seen += int(s.Count)
		if l.caller == "" || slices.ContainsFunc(names[at+1:], func(n string) bool { return strings.Contains(n, l.caller) }) {
			called += int(s.Count)
		} else {
			example = names
		}
	}
	if seen == 0 {
		return false
	}
	t.Logf("%-8s %-60s function named in %d samples, its caller in %d", l.name, l.how, seen, called)
	if called < (seen+1)/2 {
		t.Errorf("%s, %s: %s is in %d samples, called by %s in %d; one without: %q", l.name, l.how, l.function, seen, l.caller, called, example)
	}
	return true
}

// The page that the table of languages is on, and the lines around it.
const (
	docPage    = "../../../../docs/doctor-profiles.md"
	tableBegin = "<!-- languages: UPDATE=1 go test -run LanguagesPage ./internal/hosts/doctor/profile writes them -->\n"
	tableEnd   = "<!-- end of the languages -->\n"
)

// docs/doctor-profiles.md has the table of what TestLanguages tests.
func TestLanguagesPage(t *testing.T) {
	b, err := os.ReadFile(docPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(b), tableBegin)
	was, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok1 || !ok2 {
		t.Fatal("the page has no table of languages")
	}
	now := "\n| language | compiled or run | functions | callers |\n|---|---|---|---|\n"
	for _, l := range languages() {
		callers := "yes"
		if l.caller == "" {
			callers = "no: " + l.none
		}
		function := "yes"
		if l.none == noPerfMap {
			function = "of the interpreter only"
		}
		now += fmt.Sprintf("| %s | %s | %s | %s |\n", l.name, l.how, function, callers)
	}
	now += "\n"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(docPage, []byte(before+tableBegin+now+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if was != now {
		t.Errorf("the table is %s\nwant %s", was, now)
	}
}

// names returns a stack's functions, the innermost first.
func (p *Profile) names(s Sample) []string {
	names := make([]string, len(s.Stack))
	for i, f := range s.Stack {
		names[i] = p.Frames[f].Name
	}
	return names
}
