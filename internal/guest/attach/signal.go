package attach

import "syscall"

// signalText is how Go names signal n in an exit status.
func signalText(n int64) string { return syscall.Signal(n).String() }
