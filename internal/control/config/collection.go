package config

import (
	"slices"

	"github.com/distribution/reference"

	"holdfast/internal/hosts/gc"
)

// Collection returns the policy of garbage collection. The policy keeps prefetched
// images and the images of templates: an image that was built on this host could not be
// pulled again.
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

// FamiliarName returns a name as the engine lists it: with its tag, and short for
// images of Docker's own registry.
func FamiliarName(image string) string {
	name, err := reference.ParseDockerRef(image)
	if err != nil {
		return image // an id
	}
	return reference.FamiliarString(name)
}
