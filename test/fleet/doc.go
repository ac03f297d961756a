// Package fleet runs a fleet of agents, an etcd of three and clients through
// everything that can happen to them, with the code of `holdfast bench fleet`,
// and holds them to what they promise.
package fleet
