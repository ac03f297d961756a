// Package reload is the experiment of `holdfast bench reload`. HAProxy stands before
// nginx, clients arrive at a steady rate, and HAProxy is reloaded ten times a second,
// or killed and started again three times a second. The modes are: no protection, the
// usual workarounds, and the backends of `holdfast protect`. The experiment repeats
// the one of Yelp, "True Zero Downtime HAProxy Reloads" (2015), with an open-loop load:
// each client is due at a fixed time, and its wait counts from then.
//
// It runs in a network namespace of its own, on lo.
package reload
