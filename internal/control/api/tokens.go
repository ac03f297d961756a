package api

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"holdfast"
	"holdfast/internal/platform/keyfile"
)

// Bounds of bearer tokens.
const (
	MinToken     = 16 // bytes; a random token of this length cannot be guessed
	maxToken     = 512
	maxTokens    = 64 // in one file
	maxTokenName = 64
)

// TokenFiles are the paths of files with bearer tokens; "" is no file. A file has a
// line for each token, `NAME TOKEN` or just `TOKEN`. Empty lines and lines that begin
// with '#' are skipped. Other users must not be able to read the file.
type TokenFiles struct {
	Admin string // tokens that open every route
	Read  string // tokens that open routes for reading
}

// Tokens are the current bearer tokens of two files. A file is read again when it
// changes, at most once in keyfile.Every. If the new version is invalid, the tokens of
// the previous version stay. Any goroutine may use Tokens. They start no goroutine.
type Tokens struct {
	admin, read *keyfile.Watched[[]bearer] // nil: there is no such file
}

// bearer is one token. Only the token's hash is kept.
type bearer struct {
	name string
	sum  [sha256.Size]byte
}

// OpenTokens reads the files. Without files it returns nil: no token is needed.
func OpenTokens(f TokenFiles, log *slog.Logger) (*Tokens, error) {
	if f == (TokenFiles{}) {
		return nil, nil
	}
	watch := func(path, word string) (*keyfile.Watched[[]bearer], error) {
		if path == "" {
			return nil, nil
		}
		return keyfile.Watch(log, func() ([]bearer, error) { return readTokens(path, word) }, path)
	}
	admin, err1 := watch(f.Admin, "admin")
	read, err2 := watch(f.Read, "read")
	if err := cmp.Or(err1, err2); err != nil {
		return nil, err
	}
	return &Tokens{admin, read}, nil
}

// readTokens reads one file. A token without a name is named after word and its line.
// No error contains a token.
func readTokens(path, word string) ([]bearer, error) {
	text, err := keyfile.ReadSecret(path)
	if err != nil {
		return nil, fmt.Errorf("API tokens: %w", err)
	}
	all, err := parseTokens(string(text), word)
	if err != nil {
		return nil, holdfast.WithHint(fmt.Errorf("API tokens: %s: %w", path, err), "a line is NAME TOKEN; make a token with: openssl rand -hex 32")
	}
	return all, nil
}

func parseTokens(text, word string) ([]bearer, error) {
	var all []bearer
	for n, words := range keyfile.Lines(text) {
		name, token := fmt.Sprintf("%s-%d", word, n), words[0]
		if len(words) == 2 {
			name, token = words[0], words[1]
		}
		switch {
		case len(words) > 2 || !validTokenName(name):
			return nil, fmt.Errorf("line %d is neither NAME TOKEN nor TOKEN, with a name of a-z, A-Z, 0-9, '-', '_', '.', '@'", n)
		case len(token) < MinToken || len(token) > maxToken:
			return nil, fmt.Errorf("line %d: the token has %d bytes, from %d to %d are allowed", n, len(token), MinToken, maxToken)
		}
		all = append(all, bearer{name, sha256.Sum256([]byte(token))})
	}
	if len(all) == 0 {
		return nil, errors.New("the file has no token")
	}
	if len(all) > maxTokens {
		return nil, fmt.Errorf("the file has %d tokens, at most %d are allowed", len(all), maxTokens)
	}
	return all, nil
}

func validTokenName(s string) bool {
	return len(s) <= maxTokenName && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.@", r)
	})
}

// caller returns the owner of the request's token. A token that is in both files may
// make changes.
func (t *Tokens) caller(r *http.Request) (Caller, error) {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		given = "" // too short for a token
	}
	return t.bearer(sha256.Sum256([]byte(given)))
}

// bearer returns the owner of the token with the given hash.
func (t *Tokens) bearer(sum [sha256.Size]byte) (Caller, error) {
	admin, read := find(t.admin, sum), find(t.read, sum)
	switch {
	case admin != "":
		return Caller{Name: "token " + admin, Admin: true}, nil
	case read != "":
		return Caller{Name: "token " + read}, nil
	}
	return Caller{Name: unknownCaller}, &Error{Code: CodeUnauthorized, Message: "the bearer token is missing or wrong",
		Advice: "send the header Authorization: Bearer TOKEN with a token of the agent's configuration"}
}

// find returns the name of the token with the given hash, "" if there is none. It
// compares hashes, and always all of them, so that the time reveals neither length nor
// content nor position of a token.
func find(w *keyfile.Watched[[]bearer], sum [sha256.Size]byte) string {
	if w == nil {
		return ""
	}
	all, at := w.Get(), -1
	for i := range all {
		at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], all[i].sum[:]), i, at)
	}
	if at < 0 {
		return ""
	}
	return all[at].name
}

// Owner returns the name of a token with full access, "" if it is none.
func (t *Tokens) Owner(token string) string { return find(t.admin, sha256.Sum256([]byte(token))) }
