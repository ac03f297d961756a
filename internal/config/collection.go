package config

import (
	"slices"

	"github.com/distribution/reference"

	"holdfast/internal/gc"
)

// Collection is the policy of garbage collection, which keeps the images of the
// templates: one that was built on this host could not be had again.
func (c Config) Collection() gc.Config {
	policy := c.GC
	policy.Keep = slices.Clone(policy.Keep)
	for _, t := range c.Templates {
		policy.Keep = append(policy.Keep, familiar(t.Image))
		for _, step := range t.InitSteps {
			if step.Image != "" {
				policy.Keep = append(policy.Keep, familiar(step.Image))
			}
		}
	}
	return policy
}

// familiar is a name as the engine lists it: with its tag, and short for images
// of Docker's own registry.
func familiar(image string) string {
	name, err := reference.ParseDockerRef(image)
	if err != nil {
		return image // an id
	}
	return reference.FamiliarString(name)
}
