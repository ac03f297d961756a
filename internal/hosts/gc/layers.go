package gc

import (
	"crypto/sha256"
	"encoding/hex"
)

// ChainIDs are the names under which an engine keeps the layers with these
// digests, the lowest first: each stands for a layer with all below it (OCI image
// specification, config.md, Layer ChainID).
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

// layerCount is how many images have each layer. A container's own image holds
// its layers for it; layers of containers whose image has lost its last name
// stay with the engine, whatever is counted here.
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

// only tells the layers that one image alone has, the lowest first, and their
// size; below 0 where that of one is not known.
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
