package gc

import (
	"crypto/sha256"
	"encoding/hex"
)

// ChainIDs returns the names under which an engine stores the layers with these
// diff ids, lowest first. Each names a layer together with all layers below it
// (OCI image specification, config.md, Layer ChainID).
func ChainIDs(diffIDs []string) []string {
	chain := make([]string, len(diffIDs))
	for i, diff := range diffIDs {
		if i == 0 {
			chain[i] = diff
			continue
		}
		sum := sha256.Sum256([]byte(chain[i-1] + " " + diff))
		chain[i] = "sha256:" + hex.EncodeToString(sum[:])
	}
	return chain
}

// layerCount counts the images that have each layer. The image of a container
// holds the container's layers. If the image has lost its last name, the engine
// keeps the layers of its containers regardless of this count.
type layerCount struct {
	users map[string]int
	size  map[string]int64
}

func countLayers(s State) layerCount {
	c := layerCount{users: map[string]int{}, size: s.LayerSize}
	for _, img := range s.Images {
		for _, l := range img.Layers {
			c.users[l]++
		}
	}
	return c
}

// only returns the layers that a single image has, lowest first, and their size
// in bytes, negative if the size of one is unknown.
func (c layerCount) only(layers []string) (bytes int64, mine []string) {
	known := true
	for _, l := range layers {
		if c.users[l] > 1 {
			continue
		}
		mine = append(mine, l)
		size, ok := c.size[l]
		known = known && ok
		bytes += size
	}
	if !known {
		return -1, mine
	}
	return bytes, mine
}

func (c layerCount) drop(layers []string) {
	for _, l := range layers {
		c.users[l]--
	}
}
