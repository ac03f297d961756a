package main

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

//go:embed assets
var assets embed.FS

// maxShells bounds the shells of one container.
const maxShells = 64

// policy allows the page to load files of this server only, and no inline scripts. It
// allows inline styles, because xterm.js writes its theme and its colours as style elements
// and attributes.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; " +
	"img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

type server struct {
	id        identity
	reaper    *reaper
	lobby     *lobby
	log       *slog.Logger
	terminals sync.WaitGroup // open ones
	lingering *lingering
}

func newServer(id identity, r *reaper, log *slog.Logger) *server {
	return &server{id: id, reaper: r, lobby: newLobby(maxShells), log: log, lingering: &lingering{by: map[string]*holder{}}}
}

// handler returns the handler of all routes. The gateway removes its path prefix from
// requests, and the page uses relative URLs.
func (s *server) handler() http.Handler {
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // cannot fail: the directory is embedded
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /ws", s.terminal)
	mux.Handle("GET /", cached(fingerprint(files), http.FileServerFS(files)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		mux.ServeHTTP(w, r)
	})
}

// cached allows browsers to cache files, but makes them revalidate each file: a newer
// image serves newer files at the same address.
func cached(tag string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("ETag", tag)
		next.ServeHTTP(w, r)
	})
}

// fingerprint returns one entity tag for all files.
func fingerprint(files fs.FS) string {
	sum := sha256.New()
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(files, name)
		sum.Write(b)
		return err
	})
	if err != nil {
		panic(err) // cannot fail: the files are embedded
	}
	return `"` + hex.EncodeToString(sum.Sum(nil)[:12]) + `"`
}

// sameHost reports whether a request comes from a page of this server. A browser sends
// Origin with every WebSocket, and a page can set neither Origin nor X- headers. A client
// without Origin is not a browser. If a gateway changed Host, X-Forwarded-Host has the
// original.
func sameHost(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false
	}
	return strings.EqualFold(u.Host, r.Host) || strings.EqualFold(u.Host, r.Header.Get("X-Forwarded-Host"))
}
