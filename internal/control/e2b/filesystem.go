package e2b

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"sort"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/e2b/envd"
)

// filesystem is the filesystem service.
type filesystem struct{ d *Server }

// at returns the user of a call, and a path as the user means it.
func (d *Server) at(ctx context.Context, s sandbox, user, p string) (account, string, error) {
	a, err := d.account(ctx, s, user)
	return a, path.Clean(join(a.home, p)), err
}

// missingFile tells a missing file from a session that has ended meanwhile.
func (d *Server) missingFile(ctx context.Context, s sandbox, p string, err error) error {
	if !errors.Is(err, holdfast.ErrNotFound) {
		return err
	}
	if !d.lives(ctx, s) {
		return ended(s.ID)
	}
	return refuse(404, "path not found: %s", p)
}

// entryOf describes a file. A link has the type of what it leads to, and names it.
func (d *Server) entryOf(ctx context.Context, s sandbox, f holdfast.File, n names) *envd.EntryInfo {
	mode, _ := strconv.ParseUint(f.Mode, 8, 32) // the agent writes it so
	e := &envd.EntryInfo{
		Name: f.Name, Path: f.Path, Size: f.Size, Mode: uint32(mode & 0o777), Type: typeOf(f.Type),
		Owner: nameOf(n.users, f.UID), Group: nameOf(n.groups, f.GID), ModifiedTime: timestamppb.New(f.Modified),
		Metadata: metadataOf(f),
	}
	e.Permissions = permissions(f.Type, mode)
	if f.Type != holdfast.SymbolicLink {
		return e
	}
	target := f.Target
	if !strings.HasPrefix(target, "/") {
		target = path.Join(path.Dir(f.Path), target)
	}
	e.SymlinkTarget, e.IsSymlink = &target, true
	if to, err := d.o.Agent.Stat(ctx, s.key(), f.Path, true); err == nil {
		e.Type = typeOf(to.Type)
	}
	return e
}

func typeOf(t holdfast.FileType) envd.FileType {
	switch t {
	case holdfast.RegularFile:
		return envd.FileType_FILE_TYPE_FILE
	case holdfast.Directory:
		return envd.FileType_FILE_TYPE_DIRECTORY
	case holdfast.SymbolicLink:
		return envd.FileType_FILE_TYPE_SYMLINK
	}
	return envd.FileType_FILE_TYPE_UNSPECIFIED
}

// permissions are written as by ls.
func permissions(t holdfast.FileType, mode uint64) string {
	m := fs.FileMode(mode & 0o777)
	letter := map[holdfast.FileType]string{holdfast.Directory: "d", holdfast.SymbolicLink: "l", holdfast.NamedPipe: "p", holdfast.SocketFile: "s", holdfast.DeviceFile: "c"}[t]
	if letter == "" {
		letter = "-"
	}
	return letter + m.String()[1:]
}

// stat describes the file at a path.
func (d *Server) stat(ctx context.Context, s sandbox, p string) (*envd.EntryInfo, error) {
	f, err := d.o.Agent.Stat(ctx, s.key(), p, false)
	if err != nil {
		return nil, d.missingFile(ctx, s, p, err)
	}
	return d.entryOf(ctx, s, f, d.names(ctx, s)), nil
}

// Stat describes a file.
func (f filesystem) Stat(ctx context.Context, r *connect.Request[envd.StatRequest]) (*connect.Response[envd.StatResponse], error) {
	s := sandboxOf(ctx)
	_, p, err := f.d.at(ctx, s, userOf(r.Header()), r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	e, err := f.d.stat(ctx, s, p)
	return connect.NewResponse(&envd.StatResponse{Entry: e}), err
}

// ListDir lists a directory, and those below it to a depth.
func (f filesystem) ListDir(ctx context.Context, r *connect.Request[envd.ListDirRequest]) (*connect.Response[envd.ListDirResponse], error) {
	s := sandboxOf(ctx)
	_, p, err := f.d.at(ctx, s, userOf(r.Header()), r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	top, err := f.d.o.Agent.Stat(ctx, s.key(), p, true)
	if err != nil {
		return nil, f.d.missingFile(ctx, s, p, err)
	}
	if top.Type != holdfast.Directory {
		return nil, invalid("path is not a directory: %s", p)
	}
	out := &envd.ListDirResponse{}
	err = f.list(ctx, s, p, min(max(r.Msg.GetDepth(), 1), maxDepth), f.d.names(ctx, s), out)
	return connect.NewResponse(out), err
}

// list adds the entries of a directory, each before those below it.
func (f filesystem) list(ctx context.Context, s sandbox, dir string, depth uint32, n names, out *envd.ListDirResponse) error {
	files, err := f.d.o.Agent.ListFiles(ctx, s.key(), dir, 0)
	if err != nil {
		return f.d.missingFile(ctx, s, dir, err)
	}
	if files.More || len(out.Entries)+len(files.Files) > maxEntries {
		return refuse(400, "%s: a list has at most %d files", dir, maxEntries)
	}
	sort.Slice(files.Files, func(i, j int) bool { return files.Files[i].Name < files.Files[j].Name })
	for _, one := range files.Files {
		out.Entries = append(out.Entries, f.d.entryOf(ctx, s, one, n))
		if one.Type != holdfast.Directory || depth < 2 {
			continue
		}
		err := f.list(ctx, s, one.Path, depth-1, n, out)
		if p, ok := errors.AsType[*problem](err); err != nil && (!ok || p.Code != 404) { // it was removed meanwhile
			return err
		}
	}
	return nil
}

// MakeDir makes a directory, and those above it.
func (f filesystem) MakeDir(ctx context.Context, r *connect.Request[envd.MakeDirRequest]) (*connect.Response[envd.MakeDirResponse], error) {
	s := sandboxOf(ctx)
	a, p, err := f.d.at(ctx, s, userOf(r.Header()), r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if old, err := f.d.o.Agent.Stat(ctx, s.key(), p, true); err == nil {
		if old.Type != holdfast.Directory {
			return nil, invalid("path already exists but it is not a directory: %s", p)
		}
		return nil, connect.NewError(connect.CodeAlreadyExists, errors.New("directory already exists: "+p))
	}
	if err := f.d.makeDir(ctx, s, a, p); err != nil {
		return nil, err
	}
	e, err := f.d.stat(ctx, s, p)
	return connect.NewResponse(&envd.MakeDirResponse{Entry: e}), err
}

func (d *Server) makeDir(ctx context.Context, s sandbox, a account, p string) error {
	_, err := d.o.Agent.MakeDir(ctx, s.key(), api.MakeDirRequest{Path: p, Parents: true, UID: a.uid, GID: a.gid})
	return d.missingFile(ctx, s, p, err)
}

// Move gives a file another path, and makes the directories above it.
func (f filesystem) Move(ctx context.Context, r *connect.Request[envd.MoveRequest]) (*connect.Response[envd.MoveResponse], error) {
	s := sandboxOf(ctx)
	a, from, err := f.d.at(ctx, s, userOf(r.Header()), r.Msg.GetSource())
	if err != nil {
		return nil, err
	}
	if _, err := f.d.o.Agent.Stat(ctx, s.key(), from, false); err != nil {
		return nil, f.d.missingFile(ctx, s, from, err)
	}
	to := path.Clean(join(a.home, r.Msg.GetDestination()))
	if err := f.d.makeDir(ctx, s, a, path.Dir(to)); err != nil {
		return nil, err
	}
	if err := f.d.o.Agent.MoveFile(ctx, s.key(), api.MoveFileRequest{From: from, To: to, Replace: true}); err != nil {
		return nil, f.d.missingFile(ctx, s, from, err)
	}
	e, err := f.d.stat(ctx, s, to)
	return connect.NewResponse(&envd.MoveResponse{Entry: e}), err
}

// Remove removes a file, or a directory with its tree. A missing one is no error.
func (f filesystem) Remove(ctx context.Context, r *connect.Request[envd.RemoveRequest]) (*connect.Response[envd.RemoveResponse], error) {
	s := sandboxOf(ctx)
	_, p, err := f.d.at(ctx, s, userOf(r.Header()), r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	err = f.d.o.Agent.RemoveFile(ctx, s.key(), p, true)
	if errors.Is(err, holdfast.ErrNotFound) && f.d.lives(ctx, s) {
		err = nil
	}
	return connect.NewResponse(&envd.RemoveResponse{}), err
}
