package mcp

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
)

// Bounds of files.
const (
	maxPath    = 4096      // bytes: PATH_MAX of the kernel
	maxContent = 256 << 10 // characters that one call writes
	maxEntries = 200       // of one page
	fileLimit  = time.Minute
)

// The encodings of a content.
const (
	asText   = "text"
	asBase64 = "base64"
)

type pathQuery struct {
	keyQuery
	Path string `json:"path" jsonschema:"absolute, in the container"`
}

type statQuery struct {
	pathQuery
	Follow bool `json:"follow,omitempty" jsonschema:"describe the file that a link leads to"`
}

type filesQuery struct {
	pathQuery
	Limit int    `json:"limit,omitempty" jsonschema:"at most that many"`
	After string `json:"after,omitempty" jsonschema:"begin after this name: next of the previous page"`
}

type readQuery struct {
	pathQuery
	Offset   int    `json:"offset,omitempty" jsonschema:"byte to begin at; below 0 it counts from the end"`
	Bytes    int    `json:"max_bytes,omitempty" jsonschema:"at most that many bytes"`
	Encoding string `json:"encoding,omitempty" jsonschema:"of the content; text replaces what is not printable"`
}

type fileOwner struct {
	UID *int `json:"uid,omitempty" jsonschema:"owner, the container's id"`
	GID *int `json:"gid,omitempty" jsonschema:"group"`
}

type writeQuery struct {
	pathQuery
	fileOwner
	Content  string `json:"content" jsonschema:"all of it"`
	Encoding string `json:"encoding,omitempty" jsonschema:"of content"`
	Mode     string `json:"mode,omitempty" jsonschema:"octal permissions"`
}

type makeQuery struct {
	pathQuery
	fileOwner
	Parents bool   `json:"parents,omitempty" jsonschema:"also those above it; it may exist"`
	Mode    string `json:"mode,omitempty" jsonschema:"octal permissions"`
}

type moveQuery struct {
	pathQuery
	To      string `json:"to" jsonschema:"the new path"`
	Replace bool   `json:"replace,omitempty" jsonschema:"a file that has this path is lost"`
}

type removeQuery struct {
	pathQuery
	Recursive bool `json:"recursive,omitempty" jsonschema:"also a directory that is not empty"`
}

// file is a file in a session's container.
type file struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Size     int64  `json:"size" jsonschema:"bytes"`
	Mode     string `json:"mode" jsonschema:"octal"`
	UID      int    `json:"uid"`
	GID      int    `json:"gid"`
	Modified string `json:"modified"`
	Target   string `json:"target,omitempty" jsonschema:"what a symbolic link contains"`
}

func fileOf(f holdfast.File) file {
	return file{Name: visible(f.Name), Type: string(f.Type), Size: f.Size, Mode: f.Mode, UID: f.UID, GID: f.GID, Modified: stamp(f.Modified), Target: visible(f.Target)}
}

type fileList struct {
	Files []file `json:"files" jsonschema:"by name"`
	Next  string `json:"next,omitempty" jsonschema:"after of the next page; absent on the last one"`
	More  bool   `json:"more,omitempty" jsonschema:"the directory has further entries that no page shows"`
}

type fileContent struct {
	Size    int64  `json:"size" jsonschema:"bytes of the whole file"`
	Offset  int64  `json:"offset" jsonschema:"of the first byte of content"`
	Next    int64  `json:"next_offset" jsonschema:"after the last one; size at the end of the file"`
	Content string `json:"content"`
}

func fileTools() []tool {
	path := func(others map[string]bound) map[string]bound {
		all := map[string]bound{"key": aKey(), "path": aPath()}
		for name, b := range others {
			all[name] = b
		}
		return all
	}
	mode, encoding := matching("^[0-7]{1,4}$"), oneOf(asText, asBase64)
	return []tool{
		define(about{name: "file_list", title: "List a directory", text: "List the entries of a directory of a session.", kind: opens, limit: fileLimit,
			bounds: path(map[string]bound{"limit": between(1, maxEntries, 50), "after": upTo(255)})}, listFiles),
		define(about{name: "file_stat", title: "Describe a file", text: "Show type, size, mode and owner of a file of a session.", kind: opens, limit: askLimit, bounds: path(nil)},
			func(ctx context.Context, c *client.Client, q statQuery) (file, error) {
				f, err := c.Stat(ctx, holdfast.SessionKey(q.Key), q.Path, q.Follow)
				return fileOf(f), err
			}),
		define(about{name: "file_read", title: "Read a file", text: "Read a part of a regular file of a session.", kind: opens, limit: fileLimit,
			bounds: path(map[string]bound{"offset": between(-1<<50, 1<<50, 0), "max_bytes": between(1, maxOutput, usualOutput), "encoding": encoding})}, readFile),
		define(about{name: "file_write", title: "Write a file", text: "Write a whole file of a session. An old one is replaced; it keeps its mode and owner.", kind: ends, limit: fileLimit,
			bounds: path(map[string]bound{"content": upTo(maxContent), "encoding": encoding, "mode": mode, "uid": anID(), "gid": anID()})}, writeFile),
		define(about{name: "file_make_directory", title: "Make a directory", text: "Make a directory in a session.", kind: starts, limit: askLimit,
			bounds: path(map[string]bound{"mode": mode, "uid": anID(), "gid": anID()})}, makeDir),
		define(about{name: "file_move", title: "Move a file", text: "Give a file or a directory of a session another path in its file system.", kind: endsAgain, limit: askLimit,
			bounds: path(map[string]bound{"to": aPath()})},
			func(ctx context.Context, c *client.Client, q moveQuery) (none, error) {
				return none{}, c.MoveFile(ctx, holdfast.SessionKey(q.Key), api.MoveFileRequest{From: q.Path, To: q.To, Replace: q.Replace})
			}),
		define(about{name: "file_remove", title: "Remove a file", text: "Remove a file or a directory of a session.", kind: endsAgain, limit: fileLimit, bounds: path(nil)},
			func(ctx context.Context, c *client.Client, q removeQuery) (none, error) {
				return none{}, c.RemoveFile(ctx, holdfast.SessionKey(q.Key), q.Path, q.Recursive)
			}),
	}
}

// aPath is an absolute path. The agent resolves it with the container's root as its own.
func aPath() bound {
	return func(s *jsonschema.Schema) { s.Pattern, s.MaxLength = "^/", new(maxPath) }
}

// anID is a user's or a group's id, which may be absent.
func anID() bound {
	return func(s *jsonschema.Schema) { s.Minimum, s.Maximum = new(0.0), new(float64(1<<31-1)) }
}

func listFiles(ctx context.Context, c *client.Client, q filesQuery) (list fileList, err error) {
	all, err := c.ListFiles(ctx, holdfast.SessionKey(q.Key), q.Path, 0)
	if err != nil {
		return list, err
	}
	rest := all.Files
	for len(rest) > 0 && q.After != "" && rest[0].Name <= q.After {
		rest = rest[1:]
	}
	page, left := first(rest, q.Limit)
	list.Files = make([]file, 0, len(page))
	for _, f := range page {
		list.Files = append(list.Files, fileOf(f))
	}
	if left > 0 {
		list.Next = page[len(page)-1].Name
	}
	list.More = all.More && left == 0
	return list, nil
}

// partOf keeps the first bytes that are written to it, and then ends the copy.
type partOf struct {
	most int
	b    []byte
}

func (p *partOf) Write(b []byte) (int, error) {
	n := min(len(b), p.most-len(p.b))
	p.b = append(p.b, b[:n]...)
	if len(p.b) == p.most {
		return n, errEnough
	}
	return n, nil
}

func readFile(ctx context.Context, c *client.Client, q readQuery) (out fileContent, err error) {
	key := holdfast.SessionKey(q.Key)
	about, err := c.Stat(ctx, key, q.Path, true)
	if err != nil {
		return out, err
	}
	out.Size, out.Offset = about.Size, int64(q.Offset)
	if q.Offset < 0 {
		out.Offset = max(0, about.Size+int64(q.Offset))
	}
	part := &partOf{most: q.Bytes}
	if about.Type != holdfast.RegularFile || out.Offset < out.Size { // the agent says why it is no file to read
		if err = c.ReadFile(ctx, key, q.Path, out.Offset, part); err != nil && !errors.Is(err, errEnough) {
			return out, err
		}
	}
	if q.Encoding == asBase64 {
		out.Content = base64.StdEncoding.EncodeToString(part.b)
	} else {
		if out.Offset+int64(len(part.b)) < out.Size {
			part.b = wholeRunes(part.b)
		}
		out.Content = visible(strings.ToValidUTF8(string(part.b), "\uFFFD"))
	}
	out.Next = out.Offset + int64(len(part.b))
	return out, nil
}

// wholeRunes returns b without a character at its end that is not complete.
func wholeRunes(b []byte) []byte {
	for n := 1; n < min(utf8.UTFMax, len(b)); n++ {
		if last := b[len(b)-n:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return b[:len(b)-n]
			}
			break
		}
	}
	return b
}

func writeFile(ctx context.Context, c *client.Client, q writeQuery) (file, error) {
	content := []byte(q.Content)
	if q.Encoding == asBase64 {
		var err error
		if content, err = base64.StdEncoding.DecodeString(q.Content); err != nil {
			return file{}, fmt.Errorf("content: %w", err)
		}
	}
	o := holdfast.WriteFile{UID: q.UID, GID: q.GID}
	if q.Mode != "" {
		m, err := strconv.ParseUint(q.Mode, 8, 12)
		if err != nil {
			return file{}, fmt.Errorf("mode %s: %w", q.Mode, err)
		}
		o.Mode = new(uint32(m))
	}
	f, err := c.WriteFile(ctx, holdfast.SessionKey(q.Key), q.Path, o, bytes.NewReader(content))
	return fileOf(f), err
}

func makeDir(ctx context.Context, c *client.Client, q makeQuery) (file, error) {
	r := api.MakeDirRequest{Path: q.Path, Parents: q.Parents, Mode: q.Mode}
	if q.UID != nil {
		r.UID = *q.UID
	}
	if q.GID != nil {
		r.GID = *q.GID
	}
	f, err := c.MakeDir(ctx, holdfast.SessionKey(q.Key), r)
	return fileOf(f), err
}
