package gc

import (
	"cmp"
	"slices"
	"sort"
	"strings"
)

// images returns all images, whether in use or not.
func (p *planner) images() []candidate {
	var list []candidate
	for _, img := range p.s.Images {
		list = append(list, candidateOf(img))
	}
	return list
}

func candidateOf(img Image) candidate {
	return candidate{
		Deletion: Deletion{Kind: Images, ID: img.ID, Name: nameOf(img), Refs: img.Refs, LastUse: img.LastUse},
		names:    append(slices.Clone(img.Refs), img.ID), labels: img.Labels,
	}
}

// usedBy returns the size in bytes of all images that the rule selects, in use or
// not. Shared layers count once.
func (p *planner) usedBy(_ []candidate, r Rule) int64 {
	if r.MaxUsed.IsZero() && r.Reserved.IsZero() {
		return 0
	}
	var sum int64
	seen := map[string]bool{}
	for _, img := range p.s.Images {
		if p.gone[key(Images, img.ID)] || !selects(r, candidateOf(img)) {
			continue
		}
		for _, l := range img.Layers {
			if !seen[l] {
				seen[l] = true
				sum += p.s.LayerSize[l]
			}
		}
	}
	return sum
}

// newestOf returns the ids of the images with one of the n newest tags of a
// repository. Among tags built at the same time the last used counts as newer.
func newestOf(images []Image, n int) map[string]bool {
	newest := map[string]bool{}
	if n <= 0 {
		return newest
	}
	byRepo := map[string][]Image{}
	for _, img := range images {
		for _, ref := range img.Refs {
			if repo := tagged(ref); repo != "" {
				byRepo[repo] = append(byRepo[repo], img)
			}
		}
	}
	for _, tags := range byRepo {
		sort.Slice(tags, func(i, j int) bool {
			x, y := &tags[i], &tags[j]
			return cmp.Or(y.Created.Compare(x.Created), y.LastUse.Compare(x.LastUse), cmp.Compare(x.ID, y.ID)) < 0
		})
		for _, img := range tags[:min(n, len(tags))] {
			newest[img.ID] = true
		}
	}
	return newest
}

// tagged returns the repository of a reference with a tag, or "" for one with a
// digest.
func tagged(ref string) string {
	if strings.Contains(ref, "@") {
		return ""
	}
	if i := strings.LastIndex(ref, ":"); i > strings.LastIndex(ref, "/") {
		return ref[:i]
	}
	return ""
}
