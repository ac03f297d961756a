package symbol

import (
	"bytes"
	"debug/elf"
	"encoding/hex"
	"hash/crc32"
	"io"
	"os"
	"path"
	"strings"

	"holdfast/internal/platform/linux/perf/elffile"
)

// Program says where a program's file is, to find the separate file with its symbols.
type Program struct {
	// Path is the file's path as its process sees it.
	Path string
	// Open opens a file by its path as the process sees it.
	Open func(path string) (*os.File, error)
}

// debugRoot is where distributions put separate symbols
// (sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html).
const debugRoot = "/usr/lib/debug"

const (
	maxNote     = 4096
	maxBuildID  = 64
	maxDebugCRC = 256 << 20
)

// debugSymbols names addresses by the file with the symbols that were stripped: by the
// build id in the process's root or on this host, or by the debug link.
func debugSymbols(f *elf.File, p Program, want wanted) (map[uint64]string, error) {
	if p.Open == nil {
		return nil, nil
	}
	id := buildID(f)
	if len(id) > 2 {
		name := debugRoot + "/.build-id/" + id[:2] + "/" + id[2:] + ".debug"
		for _, open := range []func(string) (*os.File, error){p.Open, func(name string) (*os.File, error) { return openBelow("/", name) }} {
			if names := namesFrom(open, name, id, 0, want); names != nil {
				return names, nil
			}
		}
	}
	link, sum := debugLink(f)
	if link == "" || !strings.HasPrefix(p.Path, "/") {
		return nil, nil
	}
	dir := path.Dir(p.Path)
	for _, name := range []string{dir + "/" + link, dir + "/.debug/" + link, debugRoot + dir + "/" + link} {
		if names := namesFrom(p.Open, name, id, sum, want); names != nil {
			return names, nil
		}
	}
	return nil, nil
}

// namesFrom names addresses by a file if it belongs to the program: it has the same build
// id or, if the program has none, the checksum of the link. Else it returns nil.
func namesFrom(open func(string) (*os.File, error), name, id string, sum uint32, want wanted) map[uint64]string {
	file, err := open(name)
	if err != nil {
		return nil
	}
	defer file.Close()
	f, err := elffile.Open(file)
	if err != nil {
		return nil
	}
	if id != "" && buildID(f) != id || id == "" && !sums(file, sum) {
		return nil
	}
	names, err := symbols(f, elf.SHT_SYMTAB, want)
	if err != nil {
		return nil
	}
	return names
}

func sums(r io.ReaderAt, sum uint32) bool {
	h := crc32.NewIEEE()
	_, err := io.Copy(h, io.NewSectionReader(r, 0, maxDebugCRC))
	return err == nil && h.Sum32() == sum
}

// buildID is the id that the linker gave a file, in hexadecimal, or "" (elf(5), notes).
func buildID(f *elf.File) string {
	s := f.Section(".note.gnu.build-id")
	if !elffile.Readable(s) || s.Size > maxNote || s.Size < 16 {
		return ""
	}
	b, err := elffile.Section(s)
	if err != nil || len(b) < 16 || string(b[12:16]) != "GNU\x00" {
		return ""
	}
	n := f.ByteOrder.Uint32(b[4:])
	if n > maxBuildID || int(n) > len(b)-16 {
		return ""
	}
	return hex.EncodeToString(b[16 : 16+n])
}

// debugLink is the name of the file with the symbols, and its checksum.
func debugLink(f *elf.File) (name string, sum uint32) {
	s := f.Section(".gnu_debuglink")
	if !elffile.Readable(s) || s.Size > maxNote {
		return "", 0
	}
	b, err := elffile.Section(s)
	if err != nil {
		return "", 0
	}
	text, _, ok := bytes.Cut(b, []byte{0})
	at := (len(text) + 4) &^ 3
	if !ok || at+4 > len(b) || len(text) == 0 || bytes.ContainsRune(text, '/') || string(text) == ".." || string(text) == "." {
		return "", 0
	}
	return string(text), f.ByteOrder.Uint32(b[at:])
}
