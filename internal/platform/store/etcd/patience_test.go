package etcd

import (
	"errors"
	"strings"
	"testing"
	"time"

	"holdfast"
)

func TestPatience(t *testing.T) {
	const least = 2 * time.Second
	var p patience
	if got := p.wait(least); got != least {
		t.Errorf("before the first call: %v", got)
	}
	p.answered(8 * time.Millisecond)
	if p.mean != 8*time.Millisecond || p.variance != 4*time.Millisecond {
		t.Errorf("after the first answer: %v, %v", p.mean, p.variance)
	}
	p.answered(16 * time.Millisecond)
	if p.mean != 9*time.Millisecond || p.variance != 5*time.Millisecond {
		t.Errorf("after the second: %v, %v", p.mean, p.variance)
	}
	if got := p.wait(least); got != least {
		t.Errorf("after quick answers: %v", got)
	}
	p.late(least)
	if got := p.wait(least); got != mostPatience*least {
		t.Errorf("after none: %v", got)
	}
	n := 0
	for ; p.wait(least) > least && n < 100; n++ {
		p.answered(10 * time.Millisecond)
	}
	if n < 5 || n > 30 {
		t.Errorf("%d quick answers until calls end after %v again; want about twenty", n, least)
	}
	for range 30 {
		p.answered(1500 * time.Millisecond)
		p.answered(2500 * time.Millisecond)
	}
	if got := p.wait(least); got < 3*time.Second || got > mostPatience*least {
		t.Errorf("a cluster that answers after 1.5 to 2.5 s has %v", got)
	}
}

// An etcd that does not answer in time is asked again, and gets more time.
func TestLateAnswer(t *testing.T) {
	c := startCluster(t)
	link := newLink(t, strings.TrimPrefix(c.endpoint, "https://"))
	conf := c.config()
	conf.Endpoints, conf.Timeout = []string{"https://" + link.addr()}, 700*time.Millisecond
	s := dial(t, conf)
	link.cut(true)
	if err := s.Ping(t.Context()); !errors.Is(err, holdfast.ErrStore) || !strings.Contains(err.Error(), "no answer within 7") {
		t.Errorf("Ping while cut off = %v", err)
	}
	go func() {
		time.Sleep(time.Second)
		link.cut(false)
	}()
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping that is answered after a second = %v", err)
	}
}
