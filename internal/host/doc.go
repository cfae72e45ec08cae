// Package host is what the privileged parent does with the kernel: cgroups,
// namespaces, mounts, system call filters, and jails for the unprivileged
// children that read hostile bytes (I15). It never parses anything that a
// guest, an image or the network wrote, and it decides nothing; it imports no
// other package of this module.
//
// The rule to keep: a step that fails leaves nothing behind, and a limit or a
// fence that the kernel cannot give is an error that names it, never a weaker
// one in silence.
package host

import "errors"

// ErrNotSupported is wrapped by errors that say the running kernel, its
// configuration or the file system lacks a feature, so that a caller can name
// the remedy or skip a test.
var ErrNotSupported = errors.New("not supported here")
