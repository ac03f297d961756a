// Package session is the ownership state machine of one node. It claims a session,
// boots its container and publishes when the container is ready. It keeps the session
// while a client is connected, and stops or suspends it when it is idle. A restarted
// agent adopts the containers of its predecessor.
package session
