package host

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// jailCaps are what a child of root needs until it is inside its jail: mounts
// and filters, its uid and gid, dropping the rest, and finding JailDirs below
// directories of other users.
var jailCaps = []uintptr{
	unix.CAP_SYS_ADMIN, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SETPCAP, unix.CAP_DAC_READ_SEARCH,
}

var (
	starterOnce sync.Once
	starterJobs chan func()
)

// onStarter runs start on one thread that lives as long as the process. Two
// things about a child come from the thread that forked it: the child's parent
// death signal comes when that thread ends, which must not be before the
// process does; and the child's capability bounding set, which is small there,
// so that the child has few to drop on all its threads (80 µs each).
func onStarter(start func()) {
	starterOnce.Do(func() {
		starterJobs = make(chan func())
		go starter(starterJobs)
	})
	done := make(chan struct{})
	starterJobs <- func() { start(); close(done) }
	<-done
}

func starter(jobs <-chan func()) {
	runtime.LockOSThread() // for good
	keep := map[uintptr]bool{}
	for _, c := range jailCaps {
		keep[c] = true
	}
	for c := uintptr(0); c < 64; c++ {
		if !keep[c] {
			// Fails past the last capability, and without CAP_SETPCAP; then the
			// child has more to drop, which it does in any case.
			unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		}
	}
	for job := range jobs {
		job()
	}
}
