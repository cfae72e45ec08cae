// Package guest is the protocol between the host and the program that is
// PID 1 inside every sandbox: its messages, its configuration, and the host's
// client. Every byte that comes from a guest is hostile; the client runs only
// in an unprivileged child and bounds what it reads before it reads it.
package guest
