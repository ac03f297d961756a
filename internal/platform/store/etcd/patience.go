package etcd

import (
	"sync"
	"time"
)

// patience is how long a Store waits for an answer: the estimate of RFC 6298 (2) from the times of its
// last calls. A cluster that is busy answers all calls late. A call that ends too early is made again,
// and costs the cluster twice. Any goroutine may call its methods.
type patience struct {
	mu       sync.Mutex
	mean     time.Duration // SRTT
	variance time.Duration // RTTVAR
}

// mostPatience is the longest wait, in units of Config.Timeout. The client ends a connection that is
// cut after keepAliveTime + keepAliveTimeout, which is less.
const mostPatience = 3

// answered adds the time until an answer.
func (p *patience) answered(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mean == 0 {
		p.begin(took)
		return
	}
	p.variance += ((p.mean - took).Abs() - p.variance) / 4
	p.mean += (took - p.mean) / 8
}

// late notes that a call had no answer in this time. The next calls may take three times as long, until
// answers come sooner.
func (p *patience) late(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begin(took)
}

func (p *patience) begin(took time.Duration) { p.mean, p.variance = took, took/2 }

// wait returns how long a call may take, at least least.
func (p *patience) wait(least time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(max(least, p.mean+4*p.variance), mostPatience*least)
}
