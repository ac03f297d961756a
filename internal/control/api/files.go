package api

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"holdfast"
)

// FileService has the files of this node's sessions. Paths are absolute and the container's;
// errors wrap holdfast.ErrNotFound, holdfast.ErrBusy, holdfast.ErrBadFile,
// holdfast.ErrExists and holdfast.ErrNoSpace.
type FileService interface {
	// Stat describes a file, with follow the one that a link leads to.
	Stat(ctx context.Context, key holdfast.SessionKey, path string, follow bool) (holdfast.File, error)

	// List lists a directory by name, at most limit entries; 0 is as many as possible.
	List(ctx context.Context, key holdfast.SessionKey, path string, limit int) (list []holdfast.File, more bool, err error)

	// Read writes count bytes of a regular file from an offset on to what begin returns.
	// It calls begin at most once, and not after an error of the file.
	Read(ctx context.Context, key holdfast.SessionKey, path string, begin func(holdfast.File) (w io.Writer, from, count int64, err error)) error

	// Write writes all of r to a file.
	Write(ctx context.Context, key holdfast.SessionKey, path string, o holdfast.WriteFile, r io.Reader) (holdfast.File, error)

	// MakeDir makes a directory, and with parents those above it; then it may exist.
	MakeDir(ctx context.Context, key holdfast.SessionKey, path string, parents bool, o holdfast.WriteFile) (holdfast.File, error)

	// Move gives a file another path; with replace another file may have had it.
	Move(ctx context.Context, key holdfast.SessionKey, from, to string, replace bool) error

	// Remove removes a file or an empty directory, with recursive any directory.
	Remove(ctx context.Context, key holdfast.SessionKey, path string, recursive bool) error

	// Pack writes a file with its tree to w as a tar archive.
	Pack(ctx context.Context, key holdfast.SessionKey, path string, w io.Writer) error

	// Unpack makes the files of a tar archive below a directory.
	Unpack(ctx context.Context, key holdfast.SessionKey, path string, o holdfast.UnpackFiles, r io.Reader) (holdfast.Unpacked, error)

	// Watch calls each for every change until ctx is done, each returns an error or the
	// file is gone.
	Watch(ctx context.Context, key holdfast.SessionKey, path string, recursive bool, each func(holdfast.FileEvent) error) error
}

// FileList is the answer to a list of files.
type FileList struct {
	Files []holdfast.File `json:"files"`
	More  bool            `json:"more"` // the directory has more entries
}

// MakeDirRequest asks for a directory.
type MakeDirRequest struct {
	Path    string `json:"path"`
	Parents bool   `json:"parents,omitempty"` // make those above it, too; it may exist
	Mode    string `json:"mode,omitempty"`    // octal; default 0755
	UID     int    `json:"uid,omitempty"`
	GID     int    `json:"gid,omitempty"`
}

// MoveFileRequest asks for another path of a file.
type MoveFileRequest struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Replace bool   `json:"replace,omitempty"` // a file of the new path is replaced
}

// mediaTar is the media type of archives.
const mediaTar = "application/x-tar"

var pathParam = param{"path", "the file's absolute path in the container", needed(pathPattern)}

type fileHandlers struct{ files FileService }

func fileRoutes(f FileService) []route {
	h := fileHandlers{f}
	const files = "/v1/sessions/{key}/files"
	return []route{
		{method: "GET", path: files, id: "readFile", summary: "The content of a regular file, or with the header Range a part of it.",
			access: forAdmin, at: atItsOwner, stream: true, paced: true, partial: true, media: mediaOctets, query: []param{pathParam}, handle: h.read},
		{method: "PUT", path: files, id: "writeFile", summary: "Write a file; it appears when it is complete.",
			access: forAdmin, at: atItsOwner, stream: true, paced: true, body: mediaOctets, answer: holdfast.File{}, query: []param{pathParam,
				{"mode", "octal permissions; default those of the old file, or 0644", pattern(modePattern)},
				{"uid", "the container's id of the owner; default that of the old file, or 0", 0},
				{"gid", "likewise of the group", 0},
				{"attributes", "the file's extended attributes of the namespace user, as name=value pairs in the encoding of a query; at most 4096 bytes of names, with their prefix, and values", pattern(pairsPattern)}}, handle: h.write},
		{method: "DELETE", path: files, id: "removeFile", summary: "Remove a file or a directory.",
			access: forAdmin, at: atItsOwner, limit: limitStart, query: []param{pathParam, {"recursive", "also a directory that is not empty", false}},
			status: http.StatusNoContent, handle: h.remove},
		{method: "GET", path: files + "/stat", id: "statFile", summary: "Describe a file.",
			access: forAdmin, at: atItsOwner, limit: limitAsk, answer: holdfast.File{}, query: []param{pathParam, {"follow", "the file that a link leads to", false}},
			handle: asking(h.stat)},
		{method: "GET", path: files + "/list", id: "listFiles", summary: "The entries of a directory, by name; at most 10,000.",
			access: forAdmin, at: atItsOwner, limit: limitStop, answer: FileList{}, query: []param{pathParam, limitParam}, handle: asking(h.list)},
		{method: "POST", path: files + "/directory", id: "makeDirectory", summary: "Make a directory.",
			access: forAdmin, at: atItsOwner, limit: limitAsk, request: MakeDirRequest{}, answer: holdfast.File{}, handle: ofKey(h.makeDir)},
		{method: "POST", path: files + "/move", id: "moveFile", summary: "Give a file or a directory another path in its file system.",
			access: forAdmin, at: atItsOwner, limit: limitAsk, request: MoveFileRequest{}, status: http.StatusNoContent, handle: h.move},
		{method: "GET", path: files + "/archive", id: "packFiles", summary: "A file, or a directory with its tree, as a tar archive. An error after the first byte is in the trailer " + ErrorTrailer + ".",
			access: forAdmin, at: atItsOwner, stream: true, paced: true, media: mediaTar, query: []param{pathParam}, handle: h.pack},
		{method: "PUT", path: files + "/archive", id: "unpackFiles", summary: "Unpack a tar archive below a directory.",
			access: forAdmin, at: atItsOwner, stream: true, paced: true, body: mediaTar, answer: holdfast.Unpacked{}, query: []param{pathParam,
				{"owners", "files get the ids that the archive has; otherwise 0", false}}, handle: h.unpack},
		{method: "GET", path: files + "/watch", id: "watchFiles", summary: "Changes of a file or of a directory's entries, one line for each.",
			access: forAdmin, at: atItsOwner, stream: true, paced: true, answer: holdfast.FileEvent{}, media: mediaNDJSON, query: []param{pathParam,
				{"recursive", "also in the directories below, at most 1024", false}}, handle: h.watch},
	}
}

// about returns the session and the path of a request, and notes the path.
func (h fileHandlers) about(r *http.Request) (holdfast.SessionKey, string, error) {
	key, err := keyOf(r)
	path := r.URL.Query().Get("path")
	if err == nil && path == "" {
		err = badRequest("the query parameter path is missing")
	}
	note(r.Context(), "path", bounded(path))
	return key, path, err
}

func (h fileHandlers) read(w http.ResponseWriter, r *http.Request) error {
	key, path, err := h.about(r)
	if err != nil {
		return err
	}
	begun := false
	err = h.files.Read(r.Context(), key, path, func(f holdfast.File) (io.Writer, int64, int64, error) {
		part, status, err := rangeOf(r, w.Header(), f)
		if err != nil {
			return nil, 0, 0, err
		}
		begun = true
		header := w.Header()
		header.Set("Content-Type", mediaOctets)
		header.Set("Accept-Ranges", "bytes")
		header.Set("Last-Modified", f.Modified.UTC().Format(http.TimeFormat))
		header.Set("Content-Length", strconv.FormatInt(part.count, 10))
		w.WriteHeader(status)
		if r.Method == http.MethodHead {
			part.count = 0
		}
		return w, part.from, part.count, nil
	})
	if err != nil && begun {
		return sent{err} // net/http closes the connection: the content is too short
	}
	return err
}

func (h fileHandlers) write(w http.ResponseWriter, r *http.Request) error {
	key, path, err := h.about(r)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	o, err := writeOptions(q.Get("mode"), q)
	if err != nil {
		return err
	}
	f, err := h.files.Write(r.Context(), key, path, o, r.Body)
	if err != nil {
		return err
	}
	return writeJSON(w, f)
}

// writeOptions reads the mode and the ids of a new file.
func writeOptions(mode string, q url.Values) (o holdfast.WriteFile, err error) {
	if mode != "" {
		n, err := strconv.ParseUint(mode, 8, 12)
		if err != nil {
			return o, badQuery("mode", mode, "octal, from 0 to 7777")
		}
		m := uint32(n)
		o.Mode = &m
	}
	id := func(name string) (*int, error) {
		if !q.Has(name) {
			return nil, nil
		}
		n, err := valueOf(q, name, "a whole number from 0 on", func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 31) })
		i := int(n)
		return &i, err
	}
	var err1, err2 error
	o.UID, err1 = id("uid")
	o.GID, err2 = id("gid")
	if err1 = cmp.Or(err1, err2); err1 == nil && q.Has("attributes") {
		o.Attributes, err1 = attributesOf(q.Get("attributes"))
	}
	return o, err1
}

// attributesOf reads extended attributes.
func attributesOf(text string) (map[string]string, error) {
	pairs, err := url.ParseQuery(text)
	if !regexp.MustCompile(pairsPattern).MatchString(text) {
		err = strconv.ErrSyntax
	}
	size, all := 0, map[string]string{}
	for name, values := range pairs {
		all[name] = values[0]
		size += len("user.") + len(name) + len(values[0])
	}
	if err != nil || size > holdfast.MaxAttributes {
		return nil, badQuery("attributes", bounded(text), "name=value pairs of names with 1 to 250 bytes, with at most 4096 bytes in all")
	}
	return all, nil
}

func (h fileHandlers) remove(w http.ResponseWriter, r *http.Request) error {
	key, path, err1 := h.about(r)
	recursive, err2 := boolOf(r.URL.Query(), "recursive")
	if err := cmp.Or(err1, err2); err != nil {
		return err
	}
	if err := h.files.Remove(r.Context(), key, path, recursive); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h fileHandlers) stat(r *http.Request) (holdfast.File, error) {
	key, path, err1 := h.about(r)
	follow, err2 := boolOf(r.URL.Query(), "follow")
	if err := cmp.Or(err1, err2); err != nil {
		return holdfast.File{}, err
	}
	return h.files.Stat(r.Context(), key, path, follow)
}

func (h fileHandlers) list(r *http.Request) (FileList, error) {
	key, path, err1 := h.about(r)
	limit, err2 := limitOf(r)
	if err := cmp.Or(err1, err2); err != nil {
		return FileList{}, err
	}
	list, more, err := h.files.List(r.Context(), key, path, limit)
	return FileList{notNil(list), more}, err
}

func (h fileHandlers) makeDir(ctx context.Context, key holdfast.SessionKey, q MakeDirRequest) (holdfast.File, error) {
	note(ctx, "path", bounded(q.Path))
	o, err := writeOptions(q.Mode, nil)
	if err != nil {
		return holdfast.File{}, err
	}
	if q.UID < 0 || q.GID < 0 {
		return holdfast.File{}, badRequest("uid and gid are from 0 on")
	}
	o.UID, o.GID = &q.UID, &q.GID
	return h.files.MakeDir(ctx, key, q.Path, q.Parents, o)
}

func (h fileHandlers) move(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	return changing(func(r *http.Request, q MoveFileRequest) error {
		note(r.Context(), "path", bounded(q.From))
		note(r.Context(), "to", bounded(q.To))
		if !strings.HasPrefix(q.To, "/") {
			return badRequest("the path %q is not absolute", bounded(q.To))
		}
		return h.files.Move(r.Context(), key, q.From, q.To, q.Replace)
	})(w, r)
}

func (h fileHandlers) pack(w http.ResponseWriter, r *http.Request) error {
	key, path, err := h.about(r)
	if err != nil {
		return err
	}
	out := &stream{w: w, media: mediaTar}
	err = h.files.Pack(r.Context(), key, path, out)
	return out.end(err)
}

func (h fileHandlers) unpack(w http.ResponseWriter, r *http.Request) error {
	key, path, err1 := h.about(r)
	owners, err2 := boolOf(r.URL.Query(), "owners")
	if err := cmp.Or(err1, err2); err != nil {
		return err
	}
	n, err := h.files.Unpack(r.Context(), key, path, holdfast.UnpackFiles{Owners: owners}, r.Body)
	if err != nil {
		return err
	}
	return writeJSON(w, n)
}

func (h fileHandlers) watch(w http.ResponseWriter, r *http.Request) error {
	key, path, err1 := h.about(r)
	recursive, err2 := boolOf(r.URL.Query(), "recursive")
	if err := cmp.Or(err1, err2); err != nil {
		return err
	}
	lines := &events{stream: stream{w: w, media: mediaNDJSON}}
	err := h.files.Watch(r.Context(), key, path, recursive, func(e holdfast.FileEvent) error {
		if lines.send(e); lines.lost {
			return fmt.Errorf("the reader has left: %w", context.Canceled)
		}
		return nil
	})
	if err != nil && lines.begun {
		return sent{err}
	}
	return err
}
