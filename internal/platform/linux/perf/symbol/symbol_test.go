package symbol

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/platform/linux/tracepoint"
)

const kallsyms = `ffffffff81000000 T _stext
ffffffff81000000 T also_first
ffffffff81000100 t first.isra.0
ffffffff81000200 T second
ffffffff81000180 D some_variable
ffffffffc0000000 t in_module	[module]
ffffffff81000150 W between
`

func TestKernel(t *testing.T) {
	names, err := parseKernel(strings.NewReader(kallsyms), []uint64{
		0xffffffff81000010, 0xffffffff81000148, 0xffffffff81000180, 0xffffffff81000200, 0xffffffff81000250, 0xffffffff81000250,
		0xffffffffc0000010, 0xffffffffd0000000, 1})
	want := map[uint64]string{0xffffffff81000010: "_stext", 0xffffffff81000148: "first", 0xffffffff81000180: "between",
		0xffffffff81000200: "second", 0xffffffff81000250: "second", 0xffffffffc0000010: "in_module"}
	if err != nil || !maps.Equal(names, want) {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := parseKernel(strings.NewReader("0000000000000000 T a\n0000000000000000 T b\n"), []uint64{1}); !errors.Is(err, tracepoint.ErrHidden) {
		t.Errorf("error %v", err)
	}
	for _, bad := range []string{"garbage\n", "x\n", "12 T\n", "12 T \n", "fffffffffffffffff T long\n"} {
		if _, err := parseKernel(strings.NewReader(bad), []uint64{1}); err == nil || errors.Is(err, tracepoint.ErrHidden) {
			t.Errorf("%q: error %v", bad, err)
		}
	}
}

// Every function of this host's kernel is found by an address in it.
func TestThisKernel(t *testing.T) {
	if os.Geteuid() != 0 && testing.Short() {
		t.Skip("-short: the kernel hides its addresses from all but root")
	}
	b, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	var addrs []uint64
	known := make(map[uint64][]string) // aliases
	for i, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		f := strings.Fields(line)
		a, err := strconv.ParseUint(f[0], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if a > 0 && strings.ContainsAny(f[1], "tTwW") {
			name, _, _ := strings.Cut(f[2], ".")
			known[a] = append(known[a], name)
			if i%100 == 0 {
				addrs = append(addrs, a)
			}
		}
	}
	for how, look := range map[string]func() (map[uint64]string, error){
		"list":   func() (map[uint64]string, error) { return listKernel("/proc", addrs) },
		"ask":    func() (map[uint64]string, error) { return lookUpKernel(addrs) },
		"either": func() (map[uint64]string, error) { return Kernel("/proc", addrs) },
	} {
		names, err := look()
		if err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		for _, a := range addrs {
			if !slices.Contains(known[a], names[a]) {
				t.Errorf("%s: %x is %q, want one of %q", how, a, names[a], known[a])
			}
		}
	}
	if names, err := lookUpKernel([]uint64{1, 0}); err != nil || len(names) > 0 {
		t.Errorf("%v, %v", names, err)
	}
}

// Functions of a program are found with any linker options, even if it is stripped.
func TestPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: builds programs, some with a C linker")
	}
	for name, args := range map[string][]string{
		"plain":                 nil,
		"stripped":              {"-ldflags=-s -w"},
		"anywhere":              {"-buildmode=pie", "-ldflags=-s -w"},
		"linked by C":           {"-ldflags=-s -w -linkmode=external"},
		"linked by C, anywhere": {"-buildmode=pie", "-ldflags=-s -w -linkmode=external"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "names")
			build := exec.CommandContext(t.Context(), "go", append(append([]string{"build"}, args...), "-o", file, "./testdata/names")...)
			build.Env = append(build.Environ(), "CGO_ENABLED=1")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := exec.CommandContext(t.Context(), file).Output()
			if err != nil {
				t.Fatal(err)
			}
			text, mapped, _ := strings.Cut(string(out), "\n\n")
			ms, err := parseMaps([]byte(mapped))
			if err != nil {
				t.Fatal(err)
			}
			want := make(map[uint64]string)
			for line := range strings.Lines(text) {
				addr, name, _ := strings.Cut(strings.TrimSpace(line), " ")
				a, err := strconv.ParseUint(addr, 16, 64)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range ms {
					if a >= m.Begin && a < m.End && m.Path == file {
						want[a+3-m.Begin+m.Offset] = name // not its very beginning
					}
				}
			}
			if len(want) != 5 {
				t.Fatalf("only %v lie in the program:\n%s", want, out)
			}
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			got, err := ELF(f, Program{}, append(keys(want), 1<<40))
			if err != nil || !maps.Equal(got, want) {
				t.Errorf("%v, want %v, %v", got, want, err)
			}
		})
	}
}

func keys(m map[uint64]string) []uint64 {
	var ks []uint64
	for k := range m {
		ks = append(ks, k)
	}
	return ks
}

// Exported functions of a stripped library are found.
func TestLibrary(t *testing.T) {
	libs, err := filepath.Glob("/lib/*/libc.so.6")
	if err != nil || len(libs) == 0 {
		t.Fatalf("no libc: %v", err)
	}
	f, err := os.Open(libs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	every := make([]uint64, 0, 1000)
	for at := uint64(0x30000); at < 0x130000; at += 0x400 {
		every = append(every, at)
	}
	names, err := ELF(f, Program{}, every)
	if err != nil || len(names) < 50 {
		t.Errorf("only %d functions of %d places, %v", len(names), len(every), err)
	}
}

func TestPerfMap(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	names, err := PerfMap(strings.NewReader("1000 100 first\n0x2000 0x10 a b(c)\r\nnonsense\n3000 zz bad\n3000 10\n4000 10 "+long+"\n1080 10 newer\n"),
		[]uint64{0x1000, 0x1080, 0x10ff, 0x1100, 0x2008, 0x3000, 0x4001, 0x5000})
	want := map[uint64]string{0x1000: "first", 0x1080: "newer", 0x10ff: "first", 0x2008: "a b(c)", 0x4001: long[:maxName]}
	if err != nil || !maps.Equal(names, want) {
		t.Errorf("%v, %v", names, err)
	}
	if s := clean([]byte("a\x1b[31m\xffb\u202e")); s != "a?[31m?b?" {
		t.Errorf("%q", s)
	}
}

func TestMappings(t *testing.T) {
	ms, err := parseMaps([]byte(`00400000-00401000 r--p 00000000 fe:01 1573   /usr/bin/a
00401000-00498000 r-xp 00001000 fe:01 1573                               /usr/bin/with  two spaces (deleted)
7f0000000000-7f0000001000 rwxp 00000000 00:00 0
7fff00000000-7fff00002000 r-xp 00000000 00:00 0                          [vdso]
`))
	want := []Mapping{
		{Begin: 0x401000, End: 0x498000, Offset: 0x1000, Dev: 0xfe<<32 | 1, Inode: 1573, Path: "/usr/bin/with  two spaces (deleted)"},
		{Begin: 0x7f0000000000, End: 0x7f0000001000},
		{Begin: 0x7fff00000000, End: 0x7fff00002000, Path: "[vdso]"},
	}
	if err != nil || !reflect.DeepEqual(ms, want) {
		t.Errorf("%+v, %v", ms, err)
	}
	if _, err := parseMaps([]byte("x\n")); err == nil {
		t.Error("garbage is accepted")
	}
	own, err := Mappings("/proc", os.Getpid())
	pc := uint64(reflect.ValueOf(TestMappings).Pointer())
	for _, m := range own {
		if pc < m.Begin || pc >= m.End {
			continue
		}
		f, err := OpenMapped("/proc", os.Getpid(), m.Begin, m.End)
		if err != nil {
			if os.Geteuid() == 0 {
				t.Error(err)
			}
			return
		}
		defer f.Close()
		at := pc - m.Begin + m.Offset
		names, err := ELF(f, Program{}, []uint64{at})
		if want := runtime.FuncForPC(uintptr(pc)).Name(); err != nil || names[at] != want {
			t.Errorf("this function is %q, want %q, %v", names[at], want, err)
		}
		return
	}
	t.Errorf("this function is not in %+v, %v", own, err)
}

// A process cannot make OpenIn leave its root, or open what is not a regular file.
func TestOpenIn(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(root+"/file", []byte("inside"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"absolute": "/file", "relative": "../../../../file", "out": "/etc/passwd", "magic": "/proc/self/exe"} {
		if err := os.Symlink(to, root+"/"+link); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(root+"/pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, inside := range []string{"/file", "/absolute", "/relative", "/../../file"} {
		f, err := openBelow(root, inside)
		if err != nil {
			t.Errorf("%s: %v", inside, err)
			continue
		}
		var b bytes.Buffer
		if _, err := b.ReadFrom(f); err != nil || b.String() != "inside" {
			t.Errorf("%s holds %q, %v", inside, &b, err)
		}
		f.Close()
	}
	for _, outside := range []string{"/out", "/magic", "/missing"} {
		if f, err := openBelow(root, outside); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v, %v", outside, f, err)
		}
	}
	for _, odd := range []string{"/pipe", "/"} {
		if f, err := openBelow(root, odd); !errors.Is(err, ErrNotRegular) {
			t.Errorf("%s: %v, %v", odd, f, err)
		}
	}
	if f, err := openBelow("/", "/dev/null"); !errors.Is(err, ErrNotRegular) {
		t.Errorf("a device: %v, %v", f, err)
	}
}

// tinyELF is a program of 4 KiB from address 0x1000 on, with a symbol table, or a
// table of Go functions.
func tinyELF(table []byte, name string, kind elf.SectionType) []byte {
	le := binary.LittleEndian
	names := "\x00" + name + "\x00.strtab\x00"
	strings := "\x00a_function\x00"
	var out bytes.Buffer
	at := func() uint64 { return uint64(out.Len()) }
	out.Write(make([]byte, 64+56)) // the headers come later
	tableAt := at()
	out.Write(table)
	namesAt := at()
	out.WriteString(names)
	stringsAt := at()
	out.WriteString(strings)
	sections := at()
	for _, h := range []elf.Section64{
		{},
		{Name: 1, Type: uint32(kind), Addr: 0x8000, Off: tableAt, Size: uint64(len(table)), Link: 3, Entsize: 24},
		{Name: uint32(len(name)) + 2, Type: uint32(elf.SHT_STRTAB), Off: namesAt, Size: uint64(len(names))},
		{Name: uint32(len(name)) + 2, Type: uint32(elf.SHT_STRTAB), Off: stringsAt, Size: uint64(len(strings))},
	} {
		binary.Write(&out, le, h)
	}
	var head bytes.Buffer
	binary.Write(&head, le, elf.Header64{Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1,
		Phoff: 64, Shoff: sections, Ehsize: 64, Phentsize: 56, Phnum: 1, Shentsize: 64, Shnum: 4, Shstrndx: 2})
	binary.Write(&head, le, elf.Prog64{Type: uint32(elf.PT_LOAD), Vaddr: 0x1000, Filesz: 0x1000, Memsz: 0x1000})
	copy(out.Bytes(), head.Bytes())
	return out.Bytes()
}

// tinySymbols has one function at 0x1010, of 16 bytes.
func tinySymbols() []byte {
	var b bytes.Buffer
	binary.Write(&b, binary.LittleEndian, []elf.Sym64{{}, {Name: 1, Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC), Shndx: 1, Value: 0x1010, Size: 16}})
	return b.Bytes()
}

// tinyGo has one function at 0x1010, up to 0x1020.
func tinyGo() []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, goMagic120)
	b = append(b, 0, 0, 1, 8)
	for _, word := range []uint64{1, 0, 0x1000, goHeader, 0, 0, 0, goHeader + 8} {
		b = le.AppendUint64(b, word)
	}
	b = append(b, "a.name\x00\x00"...)
	for _, word := range []uint32{0x10, 12, 0x20, 0x10, 0} {
		b = le.AppendUint32(b, word)
	}
	return b
}

func TestTinyELF(t *testing.T) {
	for want, file := range map[string][]byte{
		"a_function": tinyELF(tinySymbols(), ".symtab", elf.SHT_SYMTAB),
		"a.name":     tinyELF(tinyGo(), ".gopclntab", elf.SHT_PROGBITS),
	} {
		got, err := ELF(bytes.NewReader(file), Program{}, []uint64{0xf, 0x10, 0x1f, 0x20})
		if err != nil || !maps.Equal(got, map[uint64]string{0x10: want, 0x1f: want}) {
			t.Errorf("%v, %v", got, err)
		}
	}
}

func FuzzELF(f *testing.F) {
	f.Add(tinyELF(tinySymbols(), ".symtab", elf.SHT_SYMTAB), uint64(0x10))
	f.Add(tinyELF(tinyGo(), ".gopclntab", elf.SHT_PROGBITS), uint64(0x10))
	f.Add(tinyELF(append(make([]byte, 32), tinyGo()...), ".data.rel.ro", elf.SHT_PROGBITS), uint64(0x10))
	f.Fuzz(func(t *testing.T, b []byte, at uint64) {
		names, err := ELF(bytes.NewReader(b), Program{}, []uint64{at, at + 1})
		if err == nil && len(names) > 2 {
			t.Errorf("%d names of 2 places", len(names))
		}
	})
}

func FuzzText(f *testing.F) {
	f.Add([]byte(kallsyms), uint64(0xffffffff81000010))
	f.Add([]byte("1000 100 first\n"), uint64(0x1001))
	f.Add([]byte("00401000-00498000 r-xp 00001000 fe:01 1573 /usr/bin/a b\n"), uint64(1))
	f.Fuzz(func(t *testing.T, b []byte, at uint64) {
		for _, read := range []func() (map[uint64]string, error){
			func() (map[uint64]string, error) { return parseKernel(bytes.NewReader(b), []uint64{at}) },
			func() (map[uint64]string, error) { return PerfMap(bytes.NewReader(b), []uint64{at}) },
		} {
			if names, err := read(); err == nil && len(names) > 1 {
				t.Errorf("%v of one place", names)
			}
		}
		if ms, err := parseMaps(b); err == nil && len(ms) > len(b) {
			t.Errorf("%d mappings", len(ms))
		}
	})
}

// Addresses in a living process are named by its mapped files; an unmapped address
// has no name.
func TestProcess(t *testing.T) {
	pcs := make([]uintptr, 1)
	runtime.Callers(1, pcs)
	nspid := func(pid int) ([]int, error) { return []int{pid}, nil }
	got, err := Process(nspid, "/proc", os.Getpid(), []uint64{1, uint64(pcs[0])})
	if err != nil || len(got) != 2 || got[0] != "" || !strings.HasSuffix(got[1], ".TestProcess") {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Process(nspid, "/proc", 1<<30, []uint64{1}); err == nil {
		t.Error("a missing process has names")
	}
	own, err := Mappings("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range own { // past the last function there is no name, so the file is shown
		if strings.HasPrefix(m.Path, "/") && m.Offset == 0 {
			if got, err := Process(nspid, "/proc", os.Getpid(), []uint64{m.Begin}); err != nil || got[0] != "["+filepath.Base(m.Path)+"]" {
				t.Errorf("the header of %s is %q, %v", m.Path, got, err)
			}
		}
	}
}
