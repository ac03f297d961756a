package config

import (
	"errors"
	"fmt"
	"slices"

	"holdfast"
	"holdfast/internal/hosts/spinup/experiment"
)

// Experiment is an experiment, the same on all nodes of a fleet.
type Experiment struct {
	Name string `yaml:"name"`
	By   string `yaml:"by"` // session or node; "" is session
	// Template and With are for sessions: those of Template boot from With on the
	// treatment arm.
	Template string  `yaml:"template"`
	With     string  `yaml:"with"`
	Share    float64 `yaml:"share"` // percent on the treatment arm
}

// maxExperiments bounds the experiments. Each is asked about once a minute.
const maxExperiments = 16

func (c Config) validateExperiments() error {
	if n := len(c.Experiments); n > maxExperiments {
		return fmt.Errorf("experiments: there are %d, at most %d are allowed", n, maxExperiments)
	}
	var names, templates []string
	for i, x := range c.Experiments {
		if err := c.validateExperiment(x); err != nil {
			return fmt.Errorf("experiments[%d] (%s): %w", i, x.Name, err)
		}
		names = append(names, x.Name)
		if x.By != experiment.ByNode {
			templates = append(templates, x.Template, x.With)
		}
	}
	if err := distinct("experiments", names); err != nil {
		return err
	}
	// A session would have an arm of each, and one template.
	if err := distinct("experiments: template and with", templates); err != nil {
		return holdfast.WithHint(err, "a template belongs to one experiment at a time")
	}
	return nil
}

func (c Config) validateExperiment(x Experiment) error {
	if _, err := holdfast.ParseSessionKey(x.Name); err != nil {
		return fmt.Errorf("name: %q is not made of a-z, 0-9 and '-'", x.Name)
	}
	if !(x.Share > 0 && x.Share <= 100) { // NaN too
		return fmt.Errorf("share: %v is not over 0 and at most 100 percent", x.Share)
	}
	if err := oneOf("by", x.By, experiment.BySession, experiment.ByNode); err != nil {
		return err
	}
	if x.By == experiment.ByNode {
		if x.Template != "" || x.With != "" {
			return errors.New("template and with are for experiments by session")
		}
		return nil
	}
	for key, name := range map[string]string{"template": x.Template, "with": x.With} {
		i := slices.IndexFunc(c.Templates, func(t Template) bool { return t.Name == name })
		switch {
		case i < 0:
			return fmt.Errorf("%s: there is no template %q", key, name)
		case c.Templates[i].Replicas > 0:
			return fmt.Errorf("%s: template %s has replicas, whose template is fixed", key, name)
		}
	}
	if c.Templates[0].Name == x.With {
		return holdfast.WithHint(fmt.Errorf("with: %s is the default template, so that all sessions boot from it", x.With), "put another template first")
	}
	return nil
}

// ExperimentSpecs returns the experiments in the type of their package.
func (c Config) ExperimentSpecs() []experiment.Spec {
	var out []experiment.Spec
	for _, x := range c.Experiments {
		out = append(out, experiment.Spec{Name: x.Name, By: x.By, Template: x.Template, With: x.With, Share: x.Share})
	}
	return out
}
