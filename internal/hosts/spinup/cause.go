package spinup

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode"

	"holdfast"
	"holdfast/internal/platform/engine"
)

// Cause is why a spin-up failed, from a fixed set.
type Cause string

// The causes.
const (
	NoCause     Cause = ""            // it did not fail
	NoImage     Cause = "no-image"    // no image has this name
	BadName     Cause = "bad-name"    // the name is not valid
	Denied      Cause = "denied"      // the registry requires other credentials
	NoPlatform  Cause = "no-platform" // no image for this platform
	NoSpace     Cause = "no-space"    // the host's disk is full
	Unreachable Cause = "unreachable" // the registry does not answer
	Corrupt     Cause = "corrupt"     // the data differs from its digest or size
	Unreadable  Cause = "unreadable"  // the engine cannot read the format of a layer
	CutShort    Cause = "cut-short"   // the engine's answer ended early
	EngineDown  Cause = "engine-down" // the engine does not answer
	Canceled    Cause = "canceled"    // it was stopped, or timed out
	Other       Cause = "other"
)

// words are phrases of engine and registry errors; the first match counts. The
// stream of a pull has only the text of an error. A phrase without a space must
// be a word of its own there, because it may be a part of an image's name.
var words = []struct {
	cause Cause
	any   []string
}{
	{NoSpace, []string{"no space left on device", "disk quota exceeded"}},
	{NoPlatform, []string{"no matching manifest for", "no match for platform", "does not match the specified platform", "no manifest found for platform"}},
	{BadName, []string{"invalid reference format", "repository name must be lowercase"}},
	{Denied, []string{"no basic auth credentials", "unauthorized", "authentication required", "pull access denied", "access to the resource is denied", "incorrect username or password", "403 forbidden", "401 unauthorized"}},
	{NoImage, []string{"manifest unknown", "name unknown", "not found", "no such image"}},
	{Unreadable, []string{"invalid tar header"}},
	{Corrupt, []string{"verification failed", "unexpected commit digest", "failed size validation", "failed commit on ref", "invalid checksum", "unexpected eof in archive", "gzip: invalid"}},
	{Unreachable, []string{"connection refused", "no such host", "i/o timeout", "handshake timeout", "network is unreachable", "no route to host", "server misbehaving", "connection reset", "client.timeout exceeded", "x509", "http response to https client", "eof", "bad gateway", "service unavailable", "gateway timeout", "too many requests"}},
}

// CauseOf classifies the error of a spin-up.
func CauseOf(err error) Cause {
	switch {
	case err == nil:
		return NoCause
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Canceled
	case errors.Is(err, ErrEndedEarly):
		return CutShort
	case errors.Is(err, holdfast.ErrEngine):
		return EngineDown
	case errors.Is(err, engine.ErrNoImage):
		return NoImage
	}
	text := strings.ToLower(err.Error())
	alone := standing(text)
	for _, w := range words {
		for _, word := range w.any {
			if slices.Contains(alone, word) || strings.Contains(word, " ") && strings.Contains(text, word) {
				return w.cause
			}
		}
	}
	return Other
}

// standing returns the words of a text that stand by themselves, without the marks
// around them. A reference to an image is one word, with all that its grammar allows
// (github.com/distribution/reference).
func standing(text string) []string {
	const marks = "./:@_-"
	alone := strings.FieldsFunc(text, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(marks, r)
	})
	for i, word := range alone {
		alone[i] = strings.Trim(word, marks)
	}
	return alone
}

// causeIn is CauseOf for an error of the given phase. Only some of the phrases of
// registries mean the same when a container fails: "executable file not found" does
// not mean a missing image.
func causeIn(phase Phase, err error) Cause {
	cause := CauseOf(err)
	switch {
	case phase != Create && phase != Start && phase != Ready:
		return cause
	case cause == NoImage && errors.Is(err, engine.ErrNoImage):
		return cause
	case slices.Contains([]Cause{NoCause, Canceled, EngineDown, NoSpace, NoPlatform}, cause):
		return cause
	}
	return Other
}

// hints are what to do about a cause.
var hints = map[Cause]string{
	NoImage:     "check the image's name and tag; without a login, a private repository looks the same",
	BadName:     "an image is named [registry/]name[:tag] or [registry/]name@sha256:…, in lower case",
	Denied:      "log in to the registry (docker login), or check that the account may read the repository",
	NoPlatform:  "the image has no variant for this platform: name another platform, or another tag",
	NoSpace:     "free space where the engine keeps its images (docker system df shows what uses it)",
	Unreachable: "check that this host reaches the registry: its name, a proxy, a firewall, its certificate",
	Corrupt:     "pull again; if the error persists, the registry or a cache before it serves damaged layers",
	// https://github.com/moby/moby/releases/tag/v23.0.0
	Unreadable: "if a layer is compressed with zstd, upgrade the engine to Docker 23.0 or later, or push the image with gzip",
	CutShort:   "look at the engine's log: it may have been restarted",
}

// Hint returns what to do about a cause, or "".
func (c Cause) Hint() string { return hints[c] }

// Explain adds the hint of the cause to an error without a hint.
func (c Cause) Explain(err error) error {
	if hint := c.Hint(); hint != "" && holdfast.HintOf(err) == "" {
		return holdfast.WithHint(err, hint)
	}
	return err
}
