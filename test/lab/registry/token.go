package registry

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"time"
)

// Tokens is a token server for registries: a registry with Options.Tokens sends its clients to
// it (https://distribution.github.io/distribution/spec/auth/token/ and …/oauth/). It gives a
// token of a minute to the holder of the password or of an identity token. Any goroutine may
// call its methods.
type Tokens struct {
	server *httptest.Server
	key    *ecdsa.PrivateKey
	cert   []byte // DER, of the key

	mu       sync.Mutex
	user     string
	password string
	identity string // "" none is valid
	granted  map[string]int
}

// issuer and service are the names of the token server and of the registry.
const (
	issuer  = "tokens-of-this-test"
	service = "registry-of-this-test"
)

// StartTokens starts a token server on loopback.
func StartTokens(user, password string) (*Tokens, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	plain := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: issuer},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, plain, plain, key.Public(), key)
	if err != nil {
		return nil, err
	}
	t := &Tokens{key: key, cert: cert, user: user, password: password, granted: map[string]int{}}
	t.server = httptest.NewServer(t)
	return t, nil
}

// Close ends the server.
func (t *Tokens) Close() { t.server.Close() }

// Set replaces the valid password and the valid identity token; "" is none.
func (t *Tokens) Set(password, identity string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.password, t.identity = password, identity
}

// Granted returns the number of tokens for a grant: "basic", "password" or "refresh_token".
func (t *Tokens) Granted(grant string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.granted[grant]
}

// configure returns the registry's configuration, and writes the certificate that it reads.
func (t *Tokens) configure(certFile string) (string, error) {
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: t.cert})
	// go-containerregistry refuses an address on loopback, but not this name.
	server := strings.Replace(t.server.URL, "127.0.0.1", "localhost", 1)
	return fmt.Sprintf("auth: {token: {realm: %q, service: %s, issuer: %s, rootcertbundle: %q}}\n", server+"/token", service, issuer, certFile),
		os.WriteFile(certFile, text, 0o600)
}

// ServeHTTP answers a GET with the password as Basic credentials, or a POST of OAuth 2.
func (t *Tokens) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	grant, ok := t.allowed(r)
	if !ok || r.FormValue("service") != service {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"details": "incorrect username or password"}`)
		return
	}
	token, err := t.sign(r.Form["scope"])
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	t.mu.Lock()
	t.granted[grant]++
	t.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "access_token": token, "expires_in": 60})
}

func (t *Tokens) allowed(r *http.Request) (grant string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Method == http.MethodGet {
		user, password, _ := r.BasicAuth()
		return "basic", user == t.user && password == t.password
	}
	switch grant = r.FormValue("grant_type"); grant {
	case "password":
		return grant, r.FormValue("username") == t.user && r.FormValue("password") == t.password
	case "refresh_token":
		return grant, t.identity != "" && r.FormValue("refresh_token") == t.identity
	}
	return grant, false
}

// sign returns a JSON Web Token for what the scopes ask for (RFC 7519; distribution's
// docs/content/spec/auth/jwt.md). ES256 (RFC 7518, 3.4) is the concatenation of R and S.
func (t *Tokens) sign(scopes []string) (string, error) {
	type access struct {
		Type    string   `json:"type"`
		Name    string   `json:"name"`
		Actions []string `json:"actions"`
	}
	given := []access{}
	for _, scope := range strings.Fields(strings.Join(scopes, " ")) {
		parts := strings.SplitN(scope, ":", 3)
		if len(parts) == 3 {
			given = append(given, access{parts[0], parts[1], strings.Split(parts[2], ",")})
		}
	}
	now := time.Now()
	head, err := json.Marshal(map[string]any{"typ": "JWT", "alg": "ES256", "x5c": []string{base64.StdEncoding.EncodeToString(t.cert)}})
	claims, err2 := json.Marshal(map[string]any{
		"iss": issuer, "sub": t.user, "aud": service, "jti": rand.Text(), "access": given,
		"exp": now.Add(time.Minute).Unix(), "nbf": now.Add(-time.Minute).Unix(), "iat": now.Unix(),
	})
	if err = errors.Join(err, err2); err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString(head) + "." + base64.RawURLEncoding.EncodeToString(claims)
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, t.key, sum[:])
	if err != nil {
		return "", err
	}
	var signature [64]byte
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + base64.RawURLEncoding.EncodeToString(signature[:]), nil
}
