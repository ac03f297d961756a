// Package reload is the experiment behind `holdfast bench reload`: HAProxy before
// nginx, clients who come at a steady rate, and HAProxy reloaded ten times a
// second, or killed and started again three times a second, with nothing against
// what that does to clients, with what others do against it, and with the ways of
// Holdfast. It is the experiment of the write-up that protecting goes back to
// (Yelp, "True Zero Downtime HAProxy Reloads", 2015), with a load that does not
// wait for the server: each client is due at a moment, and its wait counts from
// then.
//
// It runs in a network namespace of its own, on lo.
package reload
