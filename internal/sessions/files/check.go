package files

import (
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"holdfast"
)

// check reports whether an answer may be that of a call, and sets the paths that follow
// from the request. The rest is what the container says about its own files.
func (m *message) check(p string, q request) bool {
	ok := true
	for _, f := range []*holdfast.File{m.Opened, m.Reply.File} {
		if f == nil {
			continue
		}
		if q.Op != "stat" || !q.Follow {
			f.Path = p
		}
		f.Name = path.Base(f.Path)
		ok = ok && path.IsAbs(f.Path) && path.Clean(f.Path) == f.Path && valid(f)
	}
	if len(m.Reply.List) > q.Limit {
		return false
	}
	for i := range m.Reply.List {
		f := &m.Reply.List[i]
		ok = ok && f.Name != "" && f.Name != "." && f.Name != ".." && !strings.Contains(f.Name, "/") && valid(f)
		f.Path = path.Join(p, f.Name)
	}
	if t := m.Reply.Total; t != nil {
		ok = ok && min(t.Entries, t.Bytes, t.Skipped) >= 0
	}
	if e := m.Event; e != nil {
		below := e.Path == p || strings.HasPrefix(e.Path, strings.TrimSuffix(p, "/")+"/") || !utf8.ValidString(p)
		ok = ok && path.IsAbs(e.Path) && path.Clean(e.Path) == e.Path && below && len(e.Path) <= maxReplaced && slices.Contains(eventKinds(), e.Kind)
	}
	return ok
}

// valid reports whether a description has values that a file may have.
func valid(f *holdfast.File) bool {
	types := []holdfast.FileType{holdfast.RegularFile, holdfast.Directory, holdfast.SymbolicLink, holdfast.NamedPipe, holdfast.SocketFile, holdfast.DeviceFile}
	size := 0
	for name, value := range f.Attributes {
		size += len(name) + len(value)
	}
	return slices.Contains(types, f.Type) && f.Size >= 0 && f.UID >= 0 && f.GID >= 0 && len(f.Path) <= maxReplaced && len(f.Target) <= maxReplaced &&
		size <= 3*holdfast.MaxAttributes && len(f.Mode) == 4 && strings.Trim(f.Mode, "01234567") == ""
}

// maxReplaced bounds a path in which bytes that are no UTF-8 were replaced, by three for one.
const maxReplaced = 3 * maxPath

// eventKinds are those of a watch in a container. The agent itself reports the session's end,
// and that nothing happens.
func eventKinds() []holdfast.FileEventKind {
	return []holdfast.FileEventKind{holdfast.WatchReady, holdfast.FileCreated, holdfast.FileWritten, holdfast.FileRemoved, holdfast.FileRenamed, holdfast.FileChanged, holdfast.EventsLost, holdfast.WatchedIsGone}
}

// printable returns a text of a container without characters that control a terminal.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) && r != '…' {
			return '?'
		}
		return r
	}, s[:min(len(s), maxText)])
	return s
}
