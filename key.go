package holdfast

import (
	"fmt"
	"strings"
)

// MaxKeyLen is the longest SessionKey in bytes. It is the longest DNS label
// (RFC 1035, 2.3.4), so that every key can be the first label of a host name.
const MaxKeyLen = 63

// SessionKey names a session: [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?, which is a DNS label
// (RFC 1123, 2.1) in lower case. A SessionKey from ParseSessionKey is safe in a path,
// a host name, a label and a container name.
type SessionKey string

// ParseSessionKey checks s and returns it as a key. The error is a *KeyError.
func ParseSessionKey(s string) (SessionKey, error) {
	switch {
	case s == "":
		return "", &KeyError{Key: s, Reason: "it is empty"}
	case len(s) > MaxKeyLen:
		return "", &KeyError{Key: s[:MaxKeyLen] + "…", Reason: fmt.Sprintf("it has %d bytes, at most %d are allowed", len(s), MaxKeyLen)}
	case strings.HasPrefix(s, "-") || strings.HasSuffix(s, "-"):
		return "", &KeyError{Key: s, Reason: "it starts or ends with a hyphen"}
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return "", &KeyError{Key: s, Reason: fmt.Sprintf("byte %d is %q", i+1, c)}
		}
	}
	return SessionKey(s), nil
}

// KeyError describes why a string is not a SessionKey.
type KeyError struct {
	Key    string // the string, cut to MaxKeyLen bytes
	Reason string // a clause: "it is empty"
}

func (e *KeyError) Error() string {
	return fmt.Sprintf("%q is not a session key: %s", e.Key, e.Reason)
}

// Hint describes the syntax of a key.
func (e *KeyError) Hint() string {
	return "a key has 1 to 63 of a-z, 0-9 and '-', and neither starts nor ends with '-'"
}
