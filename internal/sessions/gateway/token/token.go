// Package token creates and verifies connect tokens: short texts that name the
// sessions that their bearer may connect to, and the time of expiry. They are
// signed, not encrypted, and contain no secret. There is no list of tokens: a
// token ends when it expires, or when the secret that signed it is removed.
//
//	hf1.<id of the secret>.<payload>.<mac>
//
// The payload is JSON, {"keys":["alice"],"prefix":"team-","ports":[3000],"iat":1,"exp":2},
// in base64url without padding. The mac is HMAC-SHA256 over everything before its
// dot, in the same encoding. keys or prefix may be missing, and ports; iat and exp are
// Unix seconds. docs/connect-tokens.md describes the format for other programs.
package token

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"holdfast"
)

// Bounds of a token.
const (
	MaxLen  = 2048 // bytes; a browser accepts cookies of 4096 bytes (RFC 6265, 6.1)
	MaxKeys = 16
	MaxTTL  = 366 * 24 * time.Hour
	// Skew is how far the clocks of signer and verifier may differ: a token is
	// valid from Skew before its iat until Skew after its exp.
	Skew = 30 * time.Second
)

// Version is the prefix of every token, before the first dot.
const Version = "hf1"

// Errors of Verify.
var (
	ErrInvalid = errors.New("the token is not valid") // malformed, or not signed by a known secret
	ErrExpired = errors.New("the token has expired")
)

// Grant is the content of a token.
type Grant struct {
	Keys     []holdfast.SessionKey // these sessions,
	Prefix   string                // and those with a key that begins with Prefix; "" means none
	Ports    holdfast.Ports        // of these sessions; 0 is the template's own port, none is only that one
	IssuedAt time.Time             // in whole seconds, like Expires
	Expires  time.Time
}

// Allows reports whether the bearer may connect to a port of key. Port 0 is the
// template's own, of a request that names no port.
func (g Grant) Allows(key holdfast.SessionKey, port int) bool {
	return g.allowsKey(key) && g.allowsPort(port)
}

func (g Grant) allowsKey(key holdfast.SessionKey) bool {
	return slices.Contains(g.Keys, key) || g.Prefix != "" && strings.HasPrefix(string(key), g.Prefix)
}

func (g Grant) allowsPort(port int) bool {
	return port == 0 && (g.Ports.None() || g.Ports.All) || g.Ports.Allows(port)
}

// check checks the limits of a grant, both when signing and when verifying.
func (g Grant) check() error {
	if len(g.Keys) == 0 && g.Prefix == "" {
		return errors.New("the token is for no session")
	}
	if len(g.Keys) > MaxKeys {
		return fmt.Errorf("the token is for %d keys, at most %d are allowed", len(g.Keys), MaxKeys)
	}
	for _, k := range g.Keys {
		if _, err := holdfast.ParseSessionKey(string(k)); err != nil {
			return err
		}
	}
	if g.Prefix != "" {
		// A prefix is a valid key, optionally followed by hyphens.
		if _, err := holdfast.ParseSessionKey(strings.TrimRight(g.Prefix, "-")); err != nil || len(g.Prefix) > holdfast.MaxKeyLen {
			return holdfast.WithHint(fmt.Errorf("no session key begins with %q", g.Prefix), "a prefix is the beginning of keys, such as team-")
		}
	}
	if err := g.Ports.Check(0); err != nil {
		return fmt.Errorf("the token's ports: %w", err)
	}
	if ttl := g.Expires.Sub(g.IssuedAt); ttl < time.Second || ttl > MaxTTL {
		return fmt.Errorf("the token is valid for %v, it must be from 1s to %v", ttl, MaxTTL)
	}
	return nil
}

// payload is the signed JSON form of a grant.
type payload struct {
	Keys    []holdfast.SessionKey `json:"keys,omitempty"`
	Prefix  string                `json:"prefix,omitempty"`
	Ports   *holdfast.Ports       `json:"ports,omitempty"`
	Issued  int64                 `json:"iat"`
	Expires int64                 `json:"exp"`
}

var encoding = base64.RawURLEncoding.Strict()

// Sign creates a token with the secret. The times of the grant are truncated to
// seconds.
func Sign(s Secret, g Grant) (string, error) {
	if err := g.check(); err != nil {
		return "", err
	}
	p := payload{Keys: g.Keys, Prefix: g.Prefix, Issued: g.IssuedAt.Unix(), Expires: g.Expires.Unix()}
	if !g.Ports.None() {
		p.Ports = &g.Ports
	}
	text, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("encoding a token: %w", err)
	}
	signed := Version + "." + s.ID + "." + encoding.EncodeToString(text)
	t := signed + "." + encoding.EncodeToString(s.mac(signed))
	if len(t) > MaxLen {
		return "", holdfast.WithHint(fmt.Errorf("the token has %d bytes, at most %d are allowed", len(t), MaxLen), "make one for fewer keys or ports, or for a prefix")
	}
	return t, nil
}

// Verify checks a token against the secrets at the time now. The error wraps
// ErrInvalid or ErrExpired.
func Verify(secrets []Secret, token string, now time.Time) (Grant, error) {
	signed, id, text, mac, err := split(token)
	if err != nil {
		return Grant{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	s, ok := find(secrets, id)
	if !ok { // ids are not secret, so the timing reveals nothing
		return Grant{}, fmt.Errorf("%w: it is signed by %q, which is unknown", ErrInvalid, id)
	}
	if !hmac.Equal(mac, s.mac(signed)) {
		return Grant{}, fmt.Errorf("%w: its signature is wrong", ErrInvalid)
	}
	// The signature is valid; the limits still apply.
	g, err := parsePayload(text)
	if err != nil {
		return Grant{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if now.Before(g.IssuedAt.Add(-Skew)) {
		return Grant{}, fmt.Errorf("%w: it was issued in the future, so a clock is wrong", ErrInvalid)
	}
	if !now.Before(g.Expires.Add(Skew)) {
		return Grant{}, fmt.Errorf("%w at %s", ErrExpired, g.Expires.UTC().Format(time.RFC3339))
	}
	return g, nil
}

// split splits a token and decodes its parts; signed is the text that the mac
// covers.
func split(token string) (signed, id string, text, mac []byte, err error) {
	if len(token) > MaxLen {
		return "", "", nil, nil, fmt.Errorf("it has more than %d bytes", MaxLen)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 4 || parts[0] != Version || !validID(parts[1]) {
		return "", "", nil, nil, fmt.Errorf("it is not of the form %s.ID.PAYLOAD.MAC", Version)
	}
	// The decoder skips line breaks, but a token has only one valid spelling.
	if strings.ContainsAny(token, "\r\n") {
		return "", "", nil, nil, errors.New("it contains a line break")
	}
	text, err = encoding.DecodeString(parts[2])
	if err == nil {
		mac, err = encoding.DecodeString(parts[3])
	}
	if err == nil && len(mac) != sha256.Size {
		err = fmt.Errorf("its signature has %d bytes", len(mac))
	}
	signed = token[:strings.LastIndexByte(token, '.')]
	return signed, parts[1], text, mac, err
}

// parsePayload rejects unknown fields: a field of a later version could
// restrict the grant.
func parsePayload(text []byte) (Grant, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var p payload
	if err := d.Decode(&p); err != nil {
		return Grant{}, fmt.Errorf("its payload: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Grant{}, errors.New("its payload has data after the JSON object")
	}
	const far = 1 << 40 // seconds; larger values overflow the arithmetic of package time
	if p.Issued < 0 || p.Expires < 0 || p.Issued > far || p.Expires > far {
		return Grant{}, errors.New("its times are out of range")
	}
	g := Grant{Keys: p.Keys, Prefix: p.Prefix, IssuedAt: time.Unix(p.Issued, 0), Expires: time.Unix(p.Expires, 0)}
	if p.Ports != nil {
		if p.Ports.None() {
			return Grant{}, errors.New("it is for no port")
		}
		g.Ports = *p.Ports
	}
	return g, g.check()
}
