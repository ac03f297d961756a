package apitest

import (
	"context"
	"fmt"
	"time"

	"holdfast"
	"holdfast/internal/hosts/doctor/profile"
	"holdfast/internal/hosts/doctor/recordings"
)

// SomeRecording is a recording of a host. If the host is sick, its logger drains
// the LRU caches of all CPUs.
func SomeRecording(sick bool) *profile.Profile {
	p := &profile.Profile{
		Meta: profile.Meta{Format: 1, Host: "n1", Kernel: "6.1.0", CPUs: 4, Hz: 99, Began: Began, Seconds: 10},
		Frames: []profile.Frame{{Name: "__lru_add_drain_all", Kernel: true}, {Name: "generic_fadvise", Kernel: true}, {Name: "ksys_fadvise64_64", Kernel: true},
			{Name: "main.flush", File: "/logger"}, {Name: "main.main", File: "/logger"}, {Name: "shop/cart.(*Cart).Total", File: "/shop"}, {Name: "main.main", File: "/shop"}},
		Samples: []profile.Sample{{Task: profile.Task{Container: "web-1", ContainerID: "a1", Image: "shop:7", Comm: "shop"}, Stack: []int{5, 6}, Count: 1400},
			{Task: profile.Task{Container: "log-3", ContainerID: "b2", Image: "logger:2", Comm: "logger"}, Stack: []int{3, 4}, Count: 60}},
	}
	if sick {
		p.Samples = append(p.Samples, profile.Sample{Task: p.Samples[1].Task, Stack: []int{0, 1, 2, 3, 4}, Count: 1700})
	}
	return p
}

// recordingsOf implements api.Recordings: one of a healthy host, and after
// SetDoctor one of a sick host.
type recordingsOf struct{ b *Backend }

func (x recordingsOf) List() ([]recordings.Recording, error) {
	x.b.mu.Lock()
	defer x.b.mu.Unlock()
	healthy := recordings.Recording{ID: "20260102-020405-000", At: Began.Add(-time.Hour), Seconds: 10, Host: "n1", Kernel: "6.1.0", CPUs: 4, Samples: 1460, Busy: .37, Bytes: 900}
	all := []recordings.Recording{healthy}
	if x.b.sick {
		sick := healthy
		sick.ID, sick.At, sick.Samples, sick.Busy = "20260102-030405-000", Began, 3160, .8
		all = []recordings.Recording{sick, healthy}
	}
	return all, x.b.fault
}

func (x recordingsOf) Open(id string) (*profile.Profile, error) {
	all, err := x.List()
	for _, r := range all {
		if r.ID == id && err == nil {
			return SomeRecording(r.Samples > 2000), nil
		}
	}
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("recording %.40q: %w", id, holdfast.ErrNotFound)
}

func (x recordingsOf) Record(context.Context, recordings.Request) (recordings.Recording, error) {
	all, err := x.List()
	return all[0], err
}
