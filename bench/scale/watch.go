package scale

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// watched is where the store keeps sessions' records (package etcd).
const watched = "/holdfast/v1/sessions/"

// counter is a watch of all records, on a connection of its own, that counts
// what it gets and keeps nothing. It stands for a node's watch where the memory
// for as many directories is not there: to etcd it is the same.
type counter struct {
	client *clientv3.Client
	events atomic.Int64
	ended  sync.WaitGroup
}

func startCounter(ctx context.Context, endpoint string) (*counter, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop(), Context: ctx})
	if err != nil {
		return nil, fmt.Errorf("connect a watch to etcd: %w", err)
	}
	c := &counter{client: client}
	responses := client.Watch(clientv3.WithRequireLeader(ctx), watched, clientv3.WithPrefix(), clientv3.WithCreatedNotify(), clientv3.WithFragment())
	if _, ok := <-responses; !ok {
		return nil, fmt.Errorf("watch etcd: %w", context.Cause(ctx))
	}
	c.ended.Go(func() {
		for r := range responses {
			c.events.Add(int64(len(r.Events)))
		}
	})
	return c, nil
}

func (c *counter) stop() {
	_ = c.client.Close() // it only says that it was closed
	c.ended.Wait()
}
