package token

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"holdfast"
	"holdfast/internal/platform/keyfile"
)

// Bounds of secrets.
const (
	MinSecret  = 32 // bytes, the size of the hash (RFC 2104, 3)
	maxSecret  = 512
	maxSecrets = 16 // valid at the same time
	maxID      = 32
)

// Secret signs tokens. ID identifies the secret and is part of every token: 1
// to 32 characters of a-z, A-Z, 0-9, '-' and '_'.
type Secret struct {
	ID  string
	Key []byte
}

// NewSecret creates a secret of random bytes. If id is "", the id is random
// too.
func NewSecret(id string) (Secret, error) {
	if id == "" {
		b := make([]byte, 4)
		rand.Read(b) // never fails (crypto/rand)
		id = "k" + hex.EncodeToString(b)
	}
	if !validID(id) {
		return Secret{}, badID(id)
	}
	s := Secret{ID: id, Key: make([]byte, MinSecret)}
	rand.Read(s.Key)
	return s, nil
}

// Line returns the secret as a line of a secrets file.
func (s Secret) Line() string { return s.ID + " " + base64.StdEncoding.EncodeToString(s.Key) }

// String keeps the key out of logs.
func (s Secret) String() string { return "secret " + s.ID }

// GoString keeps the key out of %#v.
func (s Secret) GoString() string { return s.String() }

func (s Secret) mac(text string) []byte {
	h := hmac.New(sha256.New, s.Key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

func find(secrets []Secret, id string) (Secret, bool) {
	for _, s := range secrets {
		if s.ID == id {
			return s, true
		}
	}
	return Secret{}, false
}

func validID(s string) bool {
	return s != "" && len(s) <= maxID && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	})
}

func badID(id string) error {
	return holdfast.WithHint(fmt.Errorf("%q is not a valid id of a secret", id), "an id has 1 to 32 of a-z, A-Z, 0-9, '-' and '_'")
}

// ReadSecrets reads a secrets file. Each line holds an id, a space, and at
// least MinSecret random bytes in base64, as `openssl rand -base64 32` prints
// them. The first secret signs; all of them verify. Empty lines and lines that
// begin with '#' are skipped. Only the owner may have access to the file. No
// error contains a secret.
func ReadSecrets(path string) ([]Secret, error) {
	text, err := keyfile.ReadSecret(path)
	if err != nil {
		err = fmt.Errorf("secrets of connect tokens: %w", err)
		if errors.Is(err, fs.ErrNotExist) {
			err = holdfast.WithHint(err, "make one: (umask 077; holdfast token new-secret > "+path+")")
		}
		return nil, err
	}
	secrets, err := parseSecrets(string(text))
	if err != nil {
		return nil, holdfast.WithHint(fmt.Errorf("secrets of connect tokens: %s: %w", path, err), "`holdfast token new-secret` prints a line for it")
	}
	return secrets, nil
}

func parseSecrets(text string) ([]Secret, error) {
	var all []Secret
	for n, words := range keyfile.Lines(text) {
		if len(words) != 2 || !validID(words[0]) {
			return nil, fmt.Errorf("line %d is not an id, a space and a secret", n)
		}
		key, err := base64.StdEncoding.DecodeString(words[1])
		switch _, twice := find(all, words[0]); {
		case err != nil:
			return nil, fmt.Errorf("line %d: the secret is not valid base64", n)
		case len(key) < MinSecret || len(key) > maxSecret:
			return nil, fmt.Errorf("line %d: the secret has %d bytes, from %d to %d are allowed", n, len(key), MinSecret, maxSecret)
		case twice:
			return nil, fmt.Errorf("line %d: the id %s occurs twice", n, words[0])
		}
		all = append(all, Secret{words[0], key})
	}
	if len(all) == 0 {
		return nil, errors.New("it contains no secret")
	}
	if len(all) > maxSecrets {
		return nil, fmt.Errorf("it contains %d secrets, at most %d are allowed", len(all), maxSecrets)
	}
	return all, nil
}

// Verifier checks tokens against the current content of a secrets file. It
// reads the file again when it changes, at most once per keyfile.Every. If the
// new content is not usable, the previous secrets stay valid. Any goroutine may
// use it. It starts no goroutine.
type Verifier struct {
	secrets *keyfile.Watched[[]Secret]
}

// OpenVerifier reads the file and returns its Verifier.
func OpenVerifier(path string, log *slog.Logger) (*Verifier, error) {
	w, err := keyfile.Watch(log, func() ([]Secret, error) { return ReadSecrets(path) }, path)
	if err != nil {
		return nil, err
	}
	return &Verifier{w}, nil
}

// Verify calls the function Verify with the current secrets and time.
func (v *Verifier) Verify(token string) (Grant, error) {
	return Verify(v.secrets.Get(), token, time.Now())
}
