// Package egress is the only way out: every connection that leaves the machine
// for a sandbox or for one of our own processes is made by its one dialer
// (I14). It dials no address that the caller's rules do not name, and an
// address that a rule names is checked after resolution, never before.
package egress
