package host

import (
	"os"
	"path/filepath"
	"strconv"
)

// Warm makes the next Join quick. The kernel's first move between groups after
// a quiet time waits for an RCU grace period, some 10 ms; those that follow
// soon do not. This moves the calling process to where it is already, which
// changes nothing and starts that wait while other things are done. v1 only:
// on v2 the wait is short, and failing does not matter.
func (c *Cgroups) Warm() {
	for _, h := range c.all {
		if h.v2 {
			continue
		}
		procs := filepath.Join(h.mount, h.own, "cgroup.procs")
		_ = os.WriteFile(procs, []byte(strconv.Itoa(os.Getpid())), 0)
		return
	}
}
