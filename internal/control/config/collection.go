package config

import (
	"slices"

	"github.com/distribution/reference"

	"holdfast/internal/hosts/gc"
)

// Collection is the policy of garbage collection, which keeps the images that are
// to be present, and those of the templates: one that was built on this host could
// not be had again.
func (c Config) Collection() gc.Config {
	policy := c.GC
	policy.Keep = slices.Clone(policy.Keep)
	for _, image := range c.Images.Prefetch {
		policy.Keep = append(policy.Keep, FamiliarName(image))
	}
	for _, t := range c.Templates {
		policy.Keep = append(policy.Keep, FamiliarName(t.Image))
		for _, step := range t.InitSteps {
			if step.Image != "" {
				policy.Keep = append(policy.Keep, FamiliarName(step.Image))
			}
		}
	}
	return policy
}

// FamiliarName is a name as the engine lists it: with its tag, and short for images
// of Docker's own registry.
func FamiliarName(image string) string {
	name, err := reference.ParseDockerRef(image)
	if err != nil {
		return image // an id
	}
	return reference.FamiliarString(name)
}
