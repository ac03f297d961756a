// Command deb makes the Debian package of a build. It is a separate module, so that its
// dependencies are not dependencies of Holdfast.
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
)

// build has the parts of a package.
type build struct {
	name          string // holdfast or holdfast-bench
	version, arch string
	source        string // the top of the source tree
	binary        string
	generated     string // directory with man and completions
	out           string // directory for the package
	compression   string // xz, gzip or none
	time          time.Time
}

// maintainer has a reserved address (RFC 2606), because dpkg requires one.
const maintainer = "The Holdfast authors <holdfast@example.org>"

func main() {
	var (
		b     build
		epoch int64
	)
	flag.StringVar(&b.name, "package", "holdfast", "holdfast or holdfast-bench")
	flag.StringVar(&b.version, "version", "", "version as git describes it")
	flag.StringVar(&b.arch, "arch", "", "amd64 or arm64")
	flag.StringVar(&b.source, "source", "../..", "top of the source tree")
	flag.StringVar(&b.binary, "binary", "", "the program")
	flag.StringVar(&b.generated, "generated", "", "directory with man and completions")
	flag.StringVar(&b.out, "out", "", "directory for the package")
	flag.StringVar(&b.compression, "compression", "xz", "xz, gzip or none")
	flag.Int64Var(&epoch, "epoch", 0, "time of all files, in seconds since 1970")
	flag.Parse()
	b.time = time.Unix(epoch, 0).UTC()
	name, err := b.write()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	fmt.Println(name)
}

// write makes the package and returns its file.
func (b build) write() (name string, err error) {
	pages, err := b.compress()
	defer os.RemoveAll(pages)
	if err != nil {
		return "", err
	}
	contents, err := b.contents(pages)
	if err != nil {
		return "", err
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: b.name, Arch: b.arch, Platform: "linux", Version: debVersion(b.version), VersionSchema: "none",
		Section: "admin", Priority: "optional", Maintainer: maintainer, MTime: b.time,
	})
	if b.name == "holdfast" {
		b.describeHoldfast(info)
	} else {
		b.describeBench(info)
	}
	info.Contents, info.Deb.Compression = contents, b.compression
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return "", fmt.Errorf("the files of the package: %w", err)
	}
	var text bytes.Buffer
	if err := deb.Default.Package(info, &text); err != nil {
		return "", fmt.Errorf("packing: %w", err)
	}
	name = filepath.Join(b.out, deb.Default.ConventionalFileName(info))
	return name, os.WriteFile(name, text.Bytes(), 0o644)
}

// describeHoldfast sets the fields of the package holdfast.
func (b build) describeHoldfast(info *nfpm.Info) {
	script := func(name string) string { return filepath.Join(b.source, "packaging/deb/scripts", name) }
	info.Description = "keeps container hosts fast, and holds every connection\n" +
		"Sessions in containers, one for each key, on one host or a fleet; spin-ups\n" +
		"measured, garbage collected beside them, servers restarted without refusing a\n" +
		"connection, and what in the kernel slows containers down."
	info.Recommends = []string{"docker.io | docker-ce"}
	info.Suggests = []string{"bash-completion", "prometheus", "holdfast-bench"}
	info.Scripts = nfpm.Scripts{PostInstall: script("postinst"), PreRemove: script("prerm"), PostRemove: script("postrm")}
}

// describeBench sets the fields of the package holdfast-bench. It depends on the package
// holdfast of the same build, because the experiments start roles of that program.
func (b build) describeBench(info *nfpm.Info) {
	info.Description = "measures holdfast beside its peers on this machine\n" +
		"Experiments that run on an engine, images and containers of their own, beside\n" +
		"docker, nginx, HAProxy and perf. \"holdfast bench\" runs them."
	info.Depends = []string{"holdfast (= " + debVersion(b.version) + ")"}
	info.Recommends = []string{"docker.io | docker-ce", "nginx-light", "haproxy", "iptables"}
}

// contents lists the package's files.
func (b build) contents(pages string) (files.Contents, error) {
	var all files.Contents
	add := func(kind, from, to string, mode os.FileMode) {
		all = append(all, &files.Content{Type: kind, Source: from, Destination: to, FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: b.time}})
	}
	glob := func(pattern, to string) error {
		found, err := filepath.Glob(pattern)
		if err == nil && len(found) == 0 {
			err = errors.New("the file is missing")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", pattern, err)
		}
		for _, f := range found {
			add("", f, to+filepath.Base(f), 0o644)
		}
		return nil
	}
	in := func(path string) string { return filepath.Join(b.source, path) }
	add("", b.binary, "/usr/bin/"+b.name, 0o755)
	doc := "/usr/share/doc/" + b.name + "/"
	add("", in("packaging/deb/copyright"), doc+"copyright", 0o644)
	add("", filepath.Join(pages, "changelog.gz"), doc+"changelog.gz", 0o644)
	man := glob(filepath.Join(pages, "*.1.gz"), "/usr/share/man/man1/")
	if b.name == "holdfast-bench" {
		add("", in("packaging/deb/bench-lintian-overrides"), "/usr/share/lintian/overrides/holdfast-bench", 0o644)
		return all, man
	}
	// Only root may read it: the environment of templates may contain secrets.
	add(files.TypeConfigNoReplace, in("packaging/holdfast.yaml"), "/etc/holdfast/holdfast.yaml", 0o600)
	add("", filepath.Join(b.generated, "completions/holdfast"), "/usr/share/bash-completion/completions/holdfast", 0o644)
	add("", filepath.Join(b.generated, "completions/_holdfast"), "/usr/share/zsh/vendor-completions/_holdfast", 0o644)
	add("", filepath.Join(b.generated, "completions/holdfast.fish"), "/usr/share/fish/vendor_completions.d/holdfast.fish", 0o644)
	add("", in("packaging/deb/lintian-overrides"), "/usr/share/lintian/overrides/holdfast", 0o644)
	add("", in("NOTICE.md"), "/usr/share/doc/holdfast/NOTICE.md", 0o644)
	add("", filepath.Join(pages, "CHANGELOG.md.gz"), "/usr/share/doc/holdfast/CHANGELOG.md.gz", 0o644)
	return all, errors.Join(man,
		glob(in("packaging/systemd/*.service"), "/usr/lib/systemd/system/"),
		glob(in("docs/*.md"), "/usr/share/doc/holdfast/docs/"),
		glob(in("docs/guide/*.md"), "/usr/share/doc/holdfast/docs/guide/"),
		glob(in("docs/architecture/*.md"), "/usr/share/doc/holdfast/docs/architecture/"),
		glob(in("docs/adr/*.md"), "/usr/share/doc/holdfast/docs/adr/"),
		glob(in("deploy/prometheus/*.yml"), "/usr/share/doc/holdfast/examples/prometheus/"),
		glob(in("deploy/grafana/*.json"), "/usr/share/doc/holdfast/examples/grafana/"),
	)
}

// compress writes the compressed manual pages and changelog into a directory.
func (b build) compress() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "holdfast-deb-"); err != nil {
		return "", err
	}
	pages, err := filepath.Glob(filepath.Join(b.generated, "man", b.name, "*.1"))
	if err != nil {
		return dir, err
	}
	for _, p := range pages {
		err = errors.Join(err, gzipTo(p, filepath.Join(dir, filepath.Base(p)+".gz")))
	}
	short := filepath.Join(dir, "changelog")
	return dir, errors.Join(err, gzipTo(filepath.Join(b.source, "CHANGELOG.md"), filepath.Join(dir, "CHANGELOG.md.gz")),
		os.WriteFile(short, []byte(b.changelog()), 0o600), gzipTo(short, short+".gz"), os.Remove(short))
}

// changelog returns the changelog for Debian's tools (deb-changelog(5)): this version, and
// the place of the full changelog.
func (b build) changelog() string {
	return fmt.Sprintf("%s (%s) unstable; urgency=medium\n\n  * What changed is in /usr/share/doc/holdfast/CHANGELOG.md.gz.\n\n -- %s  %s\n",
		b.name, debVersion(b.version), maintainer, b.time.Format(time.RFC1123Z))
}

// gzipTo compresses without a file name and a time, so that the same text gives the same
// file.
func gzipTo(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	z, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return errors.Join(err, out.Close())
	}
	_, err = io.Copy(z, in)
	return errors.Join(err, z.Close(), out.Close())
}

var described = regexp.MustCompile(`^v?([0-9][0-9A-Za-z.+~]*)(?:-([0-9]+)-g([0-9a-f]+))?(-dirty)?$`)

// debVersion returns a version that dpkg orders correctly: 1.2.0, then 1.2.0+5.gabc, five
// commits later. A build without a tag sorts before all tagged versions.
func debVersion(git string) string {
	m := described.FindStringSubmatch(git)
	if m == nil {
		return "0~git." + regexp.MustCompile(`[^0-9A-Za-z.]`).ReplaceAllString(git, ".")
	}
	v := m[1]
	if m[2] != "" {
		v += "+" + m[2] + ".g" + m[3]
	}
	if m[4] != "" {
		v += "+dirty"
	}
	return v
}
