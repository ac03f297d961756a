package scale

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// watched is the key prefix of session records in the store (package etcd).
const watched = "/holdfast/v1/sessions/"

// counter is a watch of all records on its own connection. It counts the events and keeps
// nothing. For etcd it is the same as a node's watch, without the memory of a directory.
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
	_ = c.client.Close() // the error only reports that it was closed
	c.ended.Wait()
}
