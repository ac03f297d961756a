package engine

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"holdfast"
)

// maxProfile is the longest seccomp profile, in bytes: Docker's own has 13,000.
const maxProfile = 1 << 20

// ReadSeccomp reads the seccomp profile of a Spec. It is JSON of at most 1 MiB.
func ReadSeccomp(name string) ([]byte, error) {
	text, err := readProfile(name)
	if err != nil {
		return nil, holdfast.WithHint(fmt.Errorf("its seccomp profile: %w", err), "`holdfast doctor cure fadvise` writes one; the file has to exist on every host")
	}
	return text, nil
}

func readProfile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxProfile+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxProfile:
		return nil, fmt.Errorf("%s has over %d bytes", name, maxProfile)
	case !json.Valid(text):
		return nil, fmt.Errorf("%s is not JSON", name)
	}
	return text, nil
}

// ParsePlatform parses os/arch or os/arch/variant. It returns nil for "".
func ParsePlatform(s string) (*ocispec.Platform, error) {
	if s == "" {
		return nil, nil
	}
	parts := strings.Split(s, "/")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
		return nil, holdfast.WithHint(fmt.Errorf("platform %q is not os/arch or os/arch/variant", s), "for example linux/arm64")
	}
	p := &ocispec.Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p, nil
}
