package spinup

import (
	"encoding/json"
	"fmt"
)

// Sizes returns the compressed sizes of an image's layers by digest, from its
// manifest: an OCI image manifest (opencontainers/image-spec, manifest.md) or
// Docker's schema 2. A list of manifests has no layers.
func Sizes(manifest []byte) (map[string]int64, error) {
	var m struct {
		Layers []struct {
			Digest string `json:"digest"`
			Size   int64  `json:"size"`
		} `json:"layers"`
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, fmt.Errorf("read an image's manifest: %w", err)
	}
	sizes := map[string]int64{}
	for _, l := range m.Layers {
		if l.Size > 0 {
			sizes[l.Digest] = l.Size
		}
	}
	return sizes, nil
}
