package watch

import (
	"fmt"
	"time"
)

// Config is the configuration of a Watch.
type Config struct {
	Enabled bool          `yaml:"enabled"` // in the agent
	Every   time.Duration `yaml:"every"`   // between two rounds
	// Burst is the duration of a burst, 0 for none. BurstEvery is the minimum time
	// between two bursts. LookEvery is the maximum time without a suspicion.
	Burst      time.Duration `yaml:"burst"`
	BurstEvery time.Duration `yaml:"burst_every"`
	LookEvery  time.Duration `yaml:"look_every"`
	// Share is the share of one core that rounds and bursts may use together. They run
	// less often if they would use more.
	Share float64       `yaml:"cpu_share"`
	Keep  time.Duration `yaml:"keep"` // how long findings and facts are stored
}

// DefaultConfig costs under one percent of one core. Share leaves a part of it for what
// the threads' times do not include: garbage collection and the tracepoints.
func DefaultConfig() Config {
	return Config{
		Enabled: true, Every: 10 * time.Second, Burst: 8 * time.Second, BurstEvery: 5 * time.Minute, LookEvery: time.Hour,
		Share: 0.007, Keep: 7 * 24 * time.Hour,
	}
}

// Bounds of the configuration.
const (
	minShare = 0.001
	minEvery = time.Second
	maxEvery = 10 * time.Minute
	maxBurst = 10 * time.Second // a burst slows down other processes, too
	maxKeep  = 90 * 24 * time.Hour
)

// Validate checks the values and their relations. The error begins with the key.
func (c Config) Validate() error {
	switch {
	case c.Every < minEvery || c.Every > maxEvery:
		return fmt.Errorf("every: %v must be from %v to %v", c.Every, minEvery, maxEvery)
	case c.Burst != 0 && (c.Burst < time.Second || c.Burst > maxBurst):
		return fmt.Errorf("burst: %v must be 0, or from 1s to %v", c.Burst, maxBurst)
	case c.BurstEvery < 3*c.Burst:
		return fmt.Errorf("burst_every: %v must be at least three times burst, %v", c.BurstEvery, c.Burst)
	case c.LookEvery < c.BurstEvery:
		return fmt.Errorf("look_every: %v must be at least burst_every, %v", c.LookEvery, c.BurstEvery)
	case !(c.Share >= minShare && c.Share <= 1):
		return fmt.Errorf("cpu_share: %v must be from %v to 1", c.Share, minShare)
	case c.Keep < time.Hour || c.Keep > maxKeep:
		return fmt.Errorf("keep: %v must be from 1h to %v", c.Keep, maxKeep)
	}
	return nil
}

// roundShare is the part of Share for rounds, burstShare that for bursts.
func (c Config) roundShare() float64 { return c.Share * 5 / 7 }

func (c Config) burstShare() float64 { return c.Share * 2 / 7 }
