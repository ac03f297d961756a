package api

import (
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
	MinToken     = 16 // bytes; as random ones they cannot be guessed
	maxToken     = 512
	maxTokens    = 64 // in one file
	maxTokenName = 64
)

// TokenFiles are the paths of files with bearer tokens; "" is none. A file has
// a line for each token, `NAME TOKEN` or just `TOKEN`; empty lines and those
// that begin with '#' are skipped. Others must not be able to read it.
type TokenFiles struct {
	Admin string // tokens that open every route
	Read  string // tokens that open those which only look
}

// Tokens are the bearer tokens of two files as they are now: each is read again
// when it changes, at most once in keyfile.Every; one that cannot be used leaves
// what was read before. Any goroutine may use it. It runs nothing.
type Tokens struct {
	admin, read *keyfile.Watched[[]bearer] // nil: there is no such file
}

// bearer is one token. Of the token itself only the hash is kept.
type bearer struct {
	name string
	sum  [sha256.Size]byte
}

// OpenTokens reads the files a first time. Without files it returns nil: tokens
// are not asked for.
func OpenTokens(f TokenFiles, log *slog.Logger) (*Tokens, error) {
	if f == (TokenFiles{}) {
		return nil, nil
	}
	t := &Tokens{}
	for _, x := range []struct {
		to         **keyfile.Watched[[]bearer]
		path, word string
	}{{&t.admin, f.Admin, "admin"}, {&t.read, f.Read, "read"}} {
		if x.path == "" {
			continue
		}
		w, err := keyfile.Watch(log, func() ([]bearer, error) { return readTokens(x.path, x.word) }, x.path)
		if err != nil {
			return nil, err
		}
		*x.to = w
	}
	return t, nil
}

// readTokens reads one file. A token without a name is called by word and its
// line. No error has a token in it.
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
		return nil, errors.New("there is no token in it")
	}
	if len(all) > maxTokens {
		return nil, fmt.Errorf("there are %d tokens, at most %d are allowed", len(all), maxTokens)
	}
	return all, nil
}

func validTokenName(s string) bool {
	return len(s) <= maxTokenName && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.@", r)
	})
}

// caller is who sends the request's token. A token that is in both files may
// change things.
func (t *Tokens) caller(r *http.Request) (caller, error) {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		given = "" // too short for a token
	}
	return t.bearer(sha256.Sum256([]byte(given)))
}

// bearer is who has the token with the given hash.
func (t *Tokens) bearer(sum [sha256.Size]byte) (caller, error) {
	admin, read := find(t.admin, sum), find(t.read, sum)
	switch {
	case admin != "":
		return caller{who: "token " + admin, may: forAdmin}, nil
	case read != "":
		return caller{who: "token " + read, may: forReader}, nil
	}
	return caller{who: stranger}, &Error{Code: CodeUnauthorized, Message: "the bearer token is missing or wrong",
		Advice: "send the header Authorization: Bearer TOKEN with a token of the agent's configuration"}
}

// find returns the name of the token with the given hash, "" where there is
// none. It compares hashes, and always with all of them, so that neither length
// nor content nor place of a token shows in the time it takes.
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
