package e2b

import (
	"context"
	"crypto/subtle"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"holdfast/internal/control/e2b/envd"
)

// contextKey is for the values of a request's context.
type contextKey int

const (
	idKey contextKey = iota
	sandboxKey
)

func withID(r *http.Request, id string) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), idKey, id))
}

// sandboxOf returns the sandbox of a request that was admitted.
func sandboxOf(ctx context.Context) sandbox {
	s, _ := ctx.Value(sandboxKey).(sandbox)
	return s
}

// serviceRoutes are the services of a sandbox.
func (d *Server) serviceRoutes() http.Handler {
	mux := http.NewServeMux()
	options := []connect.HandlerOption{connect.WithReadMaxBytes(maxMessage), connect.WithInterceptors(errorCodes{})}
	for _, service := range []func() (string, http.Handler){
		func() (string, http.Handler) { return envd.NewProcessHandler(processes{d}, options...) },
		func() (string, http.Handler) { return envd.NewFilesystemHandler(filesystem{d}, options...) },
	} {
		path, h := service()
		mux.Handle(path, d.admitted(h))
	}
	mux.HandleFunc("GET /health", d.health)
	mux.HandleFunc("GET /files", d.download)
	mux.HandleFunc("POST /files", d.upload)
	mux.Handle("GET /envs", d.admitted(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = write(w, http.StatusOK, sandboxOf(r.Context()).Env)
	})))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, notOffered("the call "+r.Method+" "+r.URL.Path+" of a sandbox"))
	})
	return mux
}

// admitted passes requests on that have the sandbox's token.
func (d *Server) admitted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, err := d.enter(r)
		if err == nil && !same(r.Header.Get("X-Access-Token"), s.Token) {
			err = refuse(http.StatusUnauthorized, "the access token is missing or wrong")
		}
		if err == nil {
			s, err = d.running(r.Context(), s.ID)
		}
		if err != nil {
			fail(w, err)
			return
		}
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sandboxKey, s)))
	})
}

// enter returns the sandbox of a request, which is not admitted yet.
func (d *Server) enter(r *http.Request) (sandbox, error) {
	id, _ := r.Context().Value(idKey).(string)
	s, err := d.sandboxes.find(r.Context(), id)
	if err != nil {
		return s, ended(id)
	}
	return s, nil
}

// same compares secrets in constant time.
func same(given, want string) bool {
	return want != "" && subtle.ConstantTimeCompare([]byte(given), []byte(want)) == 1
}

// health says whether a sandbox runs. The SDKs ask without a token, too.
func (d *Server) health(w http.ResponseWriter, r *http.Request) {
	s, err := d.enter(r)
	if err == nil && (s.Paused || !d.lives(r.Context(), s)) {
		err = ended(s.ID)
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// userOf returns the name of the user of a request: it has basic authorization without a
// password.
func userOf(h http.Header) string {
	name, _, _ := (&http.Request{Header: h}).BasicAuth()
	return name
}

// errorCodes gives errors of the services their codes.
type errorCodes struct{}

func (errorCodes) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		answer, err := next(ctx, r)
		return answer, codeOf(err)
	}
}

func (errorCodes) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (errorCodes) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, c connect.StreamingHandlerConn) error { return codeOf(next(ctx, c)) }
}

// join returns a path in the home directory of a user, unless it is absolute.
func join(home, path string) string {
	switch {
	case path == "~":
		return home
	case strings.HasPrefix(path, "~/"):
		path = path[2:]
	}
	if strings.HasPrefix(path, "/") {
		return path
	}
	return strings.TrimSuffix(home, "/") + "/" + path
}
