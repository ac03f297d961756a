package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast"
	"holdfast/internal/control/api"
	"holdfast/internal/control/api/client"
)

// remoteFile is a file of a session, as KEY:PATH names it.
type remoteFile struct {
	key  holdfast.SessionKey
	path string // absolute
}

// remoteFileOf reads KEY:PATH. A path that is not absolute begins at the container's root.
func remoteFileOf(arg string) (remoteFile, error) {
	key, path, ok := strings.Cut(arg, ":")
	if !ok || path == "" {
		return remoteFile{}, &exitError{fmt.Errorf("%q names no file of a session", arg), exitUsage, "write KEY:PATH, such as alice:/etc/hosts"}
	}
	k, err := holdfast.ParseSessionKey(key)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return remoteFile{k, path}, err
}

func (a *app) sessionFiles() *cobra.Command {
	return group(&cobra.Command{
		Use:   "files",
		Short: "List, read, write, move, remove and watch the files of a session",
		Long: "List, read, write, move, remove and watch the files of a session. The container has to run, and needs no program for it.\n" +
			"`holdfast session cp` copies files and directories.",
		Example: "  holdfast session files ls alice:/var/log",
	}, a.filesLs(), a.filesStat(), a.filesCat(), a.filesPut(), a.filesMkdir(), a.filesMv(), a.filesRm(), a.filesWatch())
}

// aboutFile makes cmd a command with one file as its argument.
func (a *app) aboutFile(cmd *cobra.Command, limit time.Duration, do func(context.Context, *client.Client, remoteFile) error) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = args(1, 1, "KEY:PATH"), onlyOne(a.completePlaces)
	cmd.RunE = func(cmd *cobra.Command, words []string) error {
		p, err := remoteFileOf(words[0])
		if err != nil {
			return err
		}
		return a.with(cmd, limit, func(ctx context.Context, c *client.Client) error { return do(ctx, c, p) })
	}
	return cmd
}

func (a *app) filesLs() *cobra.Command {
	var limit int
	cmd := a.aboutFile(&cobra.Command{
		Use:     "ls KEY:DIR",
		Short:   "List a directory",
		Long:    "List the entries of a directory, by name. At most 10,000 are listed.",
		Example: "  holdfast session files ls alice:/etc\n  holdfast session files ls alice:/etc --json",
	}, stopLimit, func(ctx context.Context, c *client.Client, p remoteFile) error {
		all, err := c.ListFiles(ctx, p.key, p.path, limit)
		if err == nil && all.More {
			a.ui.note("the directory has more than these %d entries", len(all.Files))
		}
		return show(a.ui, all, err, func(w io.Writer, l api.FileList) { fileTable(w, l.Files) })
	})
	cmd.Flags().IntVarP(&limit, "limit", "n", 0, "at most that many; 0 is as many as possible")
	return cmd
}

func fileTable(w io.Writer, files []holdfast.File) {
	fmt.Fprintln(w, "TYPE\tMODE\tUID\tGID\tSIZE\tMODIFIED\tNAME")
	for _, f := range files {
		name := clean(f.Name)
		if f.Target != "" {
			name += " -> " + clean(f.Target)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", f.Type, f.Mode, f.UID, f.GID, f.Size, stamp(f.Modified.Truncate(time.Second)), name)
	}
}

func (a *app) filesStat() *cobra.Command {
	var follow bool
	cmd := a.aboutFile(&cobra.Command{
		Use:     "stat KEY:PATH",
		Short:   "Describe a file",
		Long:    "Describe a file: its type, size, mode, owner, group and time. Ids are the container's.",
		Example: "  holdfast session files stat alice:/etc/hosts --json",
	}, askLimit, func(ctx context.Context, c *client.Client, p remoteFile) error {
		f, err := c.Stat(ctx, p.key, p.path, follow)
		return show(a.ui, f, err, func(w io.Writer, f holdfast.File) {
			fmt.Fprintf(w, "path\t%s\n", clean(f.Path))
			fmt.Fprintf(w, "type\t%s\n", f.Type)
			if f.Target != "" {
				fmt.Fprintf(w, "target\t%s\n", clean(f.Target))
			}
			fmt.Fprintf(w, "size\t%d\nmode\t%s\nuid\t%d\ngid\t%d\nmodified\t%s\n", f.Size, f.Mode, f.UID, f.GID, stamp(f.Modified))
		})
	})
	cmd.Flags().BoolVarP(&follow, "follow-link", "L", false, "describe the file that a link leads to")
	return cmd
}

func (a *app) filesCat() *cobra.Command {
	var offset int64
	cmd := a.aboutFile(&cobra.Command{
		Use:     "cat KEY:FILE",
		Short:   "Print a file",
		Long:    "Print the content of a regular file as it is.",
		Example: "  holdfast session files cat alice:/etc/hosts\n  holdfast session files cat alice:/var/log/app.log --offset 1000 | tail",
	}, noLimit, func(ctx context.Context, c *client.Client, p remoteFile) error {
		return c.ReadFile(ctx, p.key, p.path, offset, a.ui.out)
	})
	cmd.Flags().Int64Var(&offset, "offset", 0, "first byte")
	return cmd
}

func (a *app) filesPut() *cobra.Command {
	var mode string
	uid, gid := -1, -1
	cmd := a.aboutFile(&cobra.Command{
		Use:   "put KEY:FILE",
		Short: "Write the input to a file",
		Long: "Write the input to a file. The file appears when it is complete; until then the old one stays. A new file has mode 0644 and\n" +
			"belongs to the container's root user; an old one keeps its mode and owner.",
		Example: "  echo hello | holdfast session files put alice:/tmp/hello\n  holdfast session files put alice:/usr/local/bin/tool --mode 0755 < tool",
	}, noLimit, func(ctx context.Context, c *client.Client, p remoteFile) error {
		o := holdfast.WriteFile{}
		if mode != "" {
			n, err := strconv.ParseUint(mode, 8, 12)
			if err != nil {
				return &exitError{fmt.Errorf("--mode is %q, it must be octal, such as 0644", mode), exitUsage, ""}
			}
			m := uint32(n)
			o.Mode = &m
		}
		if uid >= 0 {
			o.UID = &uid
		}
		if gid >= 0 {
			o.GID = &gid
		}
		f, err := c.WriteFile(ctx, p.key, p.path, o, a.ui.in)
		return show(a.ui, f, err, func(w io.Writer, f holdfast.File) {
			fmt.Fprintf(w, "%s:%s has %s\n", p.key, clean(f.Path), count(int(f.Size), "byte"))
		})
	})
	cmd.Flags().StringVar(&mode, "mode", "", "octal permissions (default those of the old file, or 0644)")
	cmd.Flags().IntVar(&uid, "uid", -1, "the container's id of the owner; below 0 is that of the old file, or 0")
	cmd.Flags().IntVar(&gid, "gid", -1, "likewise of the group")
	return cmd
}

func (a *app) filesMkdir() *cobra.Command {
	var q api.MakeDirRequest
	cmd := a.aboutFile(&cobra.Command{
		Use:     "mkdir KEY:DIR",
		Short:   "Make a directory",
		Long:    "Make a directory, which belongs to the container's root user.",
		Example: "  holdfast session files mkdir -p alice:/srv/data/new",
	}, askLimit, func(ctx context.Context, c *client.Client, p remoteFile) error {
		q.Path = p.path
		f, err := c.MakeDir(ctx, p.key, q)
		return show(a.ui, f, err, func(io.Writer, holdfast.File) {})
	})
	cmd.Flags().BoolVarP(&q.Parents, "parents", "p", false, "also make the directories above it; it may exist")
	cmd.Flags().StringVarP(&q.Mode, "mode", "m", "", "octal permissions (default 0755)")
	return cmd
}

func (a *app) filesMv() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "mv KEY:FROM TO",
		Short: "Give a file or a directory another path",
		Long: "Give a file or a directory another path in its file system. TO is a path of the same session; an existing directory gets the\n" +
			"file below it.",
		Example:           "  holdfast session files mv alice:/tmp/a /tmp/b",
		Args:              args(2, 2, "KEY:FROM and TO"),
		ValidArgsFunction: onlyOne(a.completePlaces),
		RunE: func(cmd *cobra.Command, words []string) error {
			from, err := remoteFileOf(words[0])
			if err != nil {
				return err
			}
			to := strings.TrimPrefix(words[1], string(from.key)+":")
			if !strings.HasPrefix(to, "/") {
				to = "/" + to
			}
			return a.with(cmd, askLimit, func(ctx context.Context, c *client.Client) error {
				if f, err := c.Stat(ctx, from.key, to, true); err == nil && f.Type == holdfast.Directory {
					to = strings.TrimSuffix(to, "/") + "/" + base(from.path)
				}
				return c.MoveFile(ctx, from.key, api.MoveFileRequest{From: from.path, To: to, Replace: force})
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "replace a file of that path")
	return cmd
}

func (a *app) filesRm() *cobra.Command {
	var recursive bool
	cmd := a.aboutFile(&cobra.Command{
		Use:     "rm KEY:PATH",
		Short:   "Remove a file or a directory",
		Long:    "Remove a file or an empty directory. A link is removed, and what it leads to stays. Mount points cannot be removed.",
		Example: "  holdfast session files rm alice:/tmp/hello\n  holdfast session files rm -r alice:/srv/data",
	}, startLimit, func(ctx context.Context, c *client.Client, p remoteFile) error {
		return c.RemoveFile(ctx, p.key, p.path, recursive)
	})
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "also a directory that is not empty")
	return cmd
}

func (a *app) filesWatch() *cobra.Command {
	var recursive bool
	cmd := a.aboutFile(&cobra.Command{
		Use:   "watch KEY:PATH",
		Short: "Print the changes of a file or a directory",
		Long: "Print a line for each change of a file, or of a directory's entries, until the file is removed: its kind and its path. Kinds\n" +
			"are create, write, chmod, remove, rename (the file had this path), and lost (too many changes, or more than 1024 directories).",
		Example: "  holdfast session files watch -r alice:/srv/data\n  holdfast session files watch alice:/etc --json",
	}, noLimit, func(ctx context.Context, c *client.Client, p remoteFile) error {
		return c.WatchFiles(ctx, p.key, p.path, recursive, a.printEvent)
	})
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "also the directories below")
	return cmd
}

// printEvent prints one line for an event.
func (a *app) printEvent(e holdfast.FileEvent) error {
	if a.ui.json {
		return json.NewEncoder(a.ui.out).Encode(e)
	}
	switch e.Kind {
	case holdfast.WatchAlive:
		return nil
	case holdfast.WatchReady:
		a.ui.note("watching %s", clean(e.Path))
		return nil
	}
	slash := ""
	if e.Directory {
		slash = "/"
	}
	_, err := fmt.Fprintf(a.ui.out, "%-6s %s%s\n", e.Kind, clean(e.Path), slash)
	return err
}

// isMissing reports that there is no such file, or no such session.
func isMissing(err error) bool { return errors.Is(err, holdfast.ErrNotFound) }

// completePlaces completes the key of KEY:PATH.
func (a *app) completePlaces(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if strings.Contains(begun, ":") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) (out []cobra.Completion, err error) {
		all, err := c.Sessions(ctx)
		for _, s := range all {
			out = append(out, string(s.Key)+":/")
		}
		return out, err
	})
}
