package watch

import (
	"fmt"
	"time"
)

// Config is what the watch can be told.
type Config struct {
	Enabled bool          `yaml:"enabled"` // in the agent
	Every   time.Duration `yaml:"every"`   // between two rounds
	// Burst is how long a deeper look takes, 0 for none; BurstEvery how long at
	// least lies between two; LookEvery how long at most, without a suspicion.
	Burst      time.Duration `yaml:"burst"`
	BurstEvery time.Duration `yaml:"burst_every"`
	LookEvery  time.Duration `yaml:"look_every"`
	// Share of one core is what rounds and deeper looks may take together: where they
	// would take more they come less often.
	Share float64       `yaml:"cpu_share"`
	Keep  time.Duration `yaml:"keep"` // findings and facts on disk
}

// DefaultConfig costs under one percent of one core. What Share leaves of that is for
// what is not seen in the threads' times: the collection of garbage, and the
// tracepoints.
func DefaultConfig() Config {
	return Config{
		Enabled: true, Every: 10 * time.Second, Burst: 8 * time.Second, BurstEvery: 5 * time.Minute, LookEvery: time.Hour,
		Share: 0.007, Keep: 7 * 24 * time.Hour,
	}
}

// Bounds of what may be configured.
const (
	minShare = 0.001
	minEvery = time.Second
	maxEvery = 10 * time.Minute
	maxBurst = 10 * time.Second // what the kernel is asked for then costs others, too
	maxKeep  = 90 * 24 * time.Hour
)

// Validate checks values and what belongs together. The error begins with the key.
func (c Config) Validate() error {
	switch {
	case c.Every < minEvery || c.Every > maxEvery:
		return fmt.Errorf("every: %v has to be from %v to %v", c.Every, minEvery, maxEvery)
	case c.Burst != 0 && (c.Burst < time.Second || c.Burst > maxBurst):
		return fmt.Errorf("burst: %v has to be 0, or from 1s to %v", c.Burst, maxBurst)
	case c.BurstEvery < 3*c.Burst:
		return fmt.Errorf("burst_every: %v has to be at least three times burst, %v", c.BurstEvery, c.Burst)
	case c.LookEvery < c.BurstEvery:
		return fmt.Errorf("look_every: %v has to be at least burst_every, %v", c.LookEvery, c.BurstEvery)
	case !(c.Share >= minShare && c.Share <= 1):
		return fmt.Errorf("cpu_share: %v has to be from %v to 1", c.Share, minShare)
	case c.Keep < time.Hour || c.Keep > maxKeep:
		return fmt.Errorf("keep: %v has to be from 1h to %v", c.Keep, maxKeep)
	}
	return nil
}

// roundShare is what rounds may take of it, and burstShare what deeper looks may.
func (c Config) roundShare() float64 { return c.Share * 5 / 7 }

func (c Config) burstShare() float64 { return c.Share * 2 / 7 }
