// Package tasks owns goroutines: a goroutine that is started through this package
// can be stopped, and its owner can wait until it has returned.
//
// A Stack holds the long-running services of a process. It starts them in order
// and stops them in the reverse order, each after the services that were started
// later have returned:
//
//	s := tasks.NewStack()
//	defer func() { err = errors.Join(err, s.Stop()) }()
//	s.Start("lease", lease.Run)
//	s.Start("gateway", gateway.Run)
//	select {
//	case err := <-s.Failed():
//		return err
//	case <-ctx.Done():
//		return nil
//	}
//
// A Group holds the goroutines that a component starts while its Run is active:
//
//	func (c *Component) Run(ctx context.Context) error {
//		if err := c.tasks.Open(ctx); err != nil {
//			return err
//		}
//		<-ctx.Done()
//		c.tasks.Close()
//		return nil
//	}
//
// For goroutines that end with the function that started them, use errgroup or
// sync.WaitGroup instead.
package tasks
