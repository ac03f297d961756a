package dashboard

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"time"
)

//go:embed assets
var files embed.FS

// assets are the files that pages load. Their path contains a version, the hash of all
// files, so browsers may cache them forever.
type assets struct {
	version string
	byName  map[string][]byte
}

// htmx is htmx with its extension.
const htmx = "vendor/htmx-sse.js"

func loadAssets() (assets, error) {
	a := assets{byName: map[string][]byte{}}
	sum := sha256.New()
	err := fs.WalkDir(files, "assets", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := files.ReadFile(p)
		if err != nil {
			return err
		}
		name := p[len("assets/"):]
		a.byName[name] = b
		sum.Write([]byte(name + "\x00"))
		sum.Write(b)
		return nil
	})
	// The files are one script: htmx initializes as soon as it is loaded, and ignores
	// an extension that loads later.
	a.byName[htmx] = slices.Concat(a.byName["vendor/htmx.min.js"], []byte(";\n"), a.byName["vendor/hx-sse.min.js"])
	a.version = hex.EncodeToString(sum.Sum(nil)[:8])
	return a, err
}

// path returns the path of a file.
func (a assets) path(name string) string { return "/assets/" + a.version + "/" + name }

// mediaOf returns a file's media type by its name, independent of the host's MIME
// tables.
func mediaOf(name string) string {
	switch path.Ext(name) {
	case ".css":
		return "text/css; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return "text/plain; charset=utf-8"
}

// asset serves a file without access control: the files contain nothing of this host.
func (d *Dashboard) asset(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	protect(h)
	name := r.PathValue("file")
	b, ok := d.assets.byName[name]
	if !ok || r.PathValue("version") != d.assets.version {
		http.NotFound(w, r)
		return
	}
	h.Set("Content-Type", mediaOf(name))
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
}
