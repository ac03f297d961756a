// Package agent assembles the agent of a node: it creates the parts in order,
// connects them, and stops them in the reverse order. It is the only package that
// knows all parts. What a part does is in the part's own package.
package agent
