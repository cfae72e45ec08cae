package host

import "golang.org/x/sys/unix"

// The profiles. Hot calls stand first; each group says why it is there. To
// find the call that killed a child, run it under strace -f, or read the
// kernel log (audit type 1326).
var (
	// ProfilePure serves the given descriptors and computes. It opens nothing.
	ProfilePure = Profile{name: "pure", lists: []func() []rule{runtimeRules, streamRules, noFilesRules}}

	// ProfileNet also makes TCP and UDP sockets and reads files of its root.
	ProfileNet = Profile{name: "net", lists: []func() []rule{runtimeRules, streamRules, socketRules, readRules}}

	// ProfileFiles also works in the directories of its root. It has no sockets.
	ProfileFiles = Profile{name: "files", lists: []func() []rule{runtimeRules, streamRules, fileRules}}
)

// runtimeRules are what every Go program needs to run at all.
func runtimeRules() []rule {
	return []rule{
		{calls: "futex nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time sched_yield restart_syscall",
			reason: "scheduler and time"},
		{calls: "rt_sigreturn rt_sigaction rt_sigprocmask sigaltstack getpid gettid",
			reason: "signal handlers and preemption"},
		{calls: "tgkill", when: []conditions{{argIs(0, 1)}},
			reason: "preemption signals its own threads: the child is pid 1 of its namespace"},
		{calls: "mmap mprotect", when: []conditions{{argLacks(2, unix.PROT_EXEC)}},
			reason: "heap; never executable, so that no new code can be loaded"},
		{calls: "munmap madvise brk mincore mremap", reason: "heap"},
		{calls: "clone", when: []conditions{{argHas(0, unix.CLONE_THREAD), argLacks(0, cloneNamespaces)}},
			reason: "threads; a clone without CLONE_THREAD would be a process"},
		{calls: "clone3", errno: unix.ENOSYS,
			reason: "flags are in memory where a filter cannot look; callers fall back to clone"},
		{calls: "exit exit_group set_robust_list rseq sched_getaffinity set_tid_address",
			reason: "threads"},
		{calls: "timer_create timer_settime timer_delete setitimer getrusage times",
			reason: "profiling and usage figures"},
		{calls: "getrandom", reason: "crypto/rand"},
		{calls: "getuid geteuid getgid getegid getppid uname getrlimit sysinfo",
			reason: "facts about itself that libraries ask for and that tell nothing"},
		{calls: "prlimit64", when: []conditions{{argIs(2, 0)}}, reason: "read limits, not set them"},
		{calls: "prctl", when: []conditions{{argIs(0, unix.PR_SET_VMA)}},
			reason: "the runtime names its heap"},
		{calls: "prctl ioctl io_uring_setup", errno: unix.EPERM,
			reason: "libraries try these and do without; prctl could clear the parent death signal"},
	}
}

const cloneNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// streamRules work on descriptors that the child already has.
func streamRules() []rule {
	return []rule{
		{calls: "read write readv writev pread64 pwrite64 preadv pwritev close lseek fstat",
			reason: "given descriptors"},
		{calls: "epoll_pwait epoll_pwait2 epoll_wait epoll_ctl epoll_create1 eventfd2 pipe2 poll ppoll pselect6",
			reason: "the runtime's poller, and pipes to itself"},
		{calls: "recvmsg sendmsg recvfrom sendto recvmmsg sendmmsg accept4 shutdown getsockname getpeername getsockopt",
			reason: "given sockets and listeners"},
		{calls: "setsockopt", when: []conditions{{argIs(1, unix.SOL_SOCKET)}, {argIs(1, unix.SOL_TCP)}},
			reason: "keep-alive, no-delay, buffers; other levels reach netfilter and protocol modules"},
		{calls: "fcntl", when: []conditions{
			{argIs(1, unix.F_GETFL)}, {argIs(1, unix.F_SETFL)}, {argIs(1, unix.F_GETFD)}, {argIs(1, unix.F_SETFD)},
			{argIs(1, unix.F_DUPFD_CLOEXEC)}, {argIs(1, unix.F_GETPIPE_SZ)},
		}, reason: "non-blocking mode and copies of its own descriptors"},
		{calls: "dup dup3", reason: "copies of its own descriptors"},
		{calls: "fsync fdatasync ftruncate fallocate", reason: "given files"},
	}
}

// noFilesRules answer "no such file" to what libraries look up by themselves
// (time zones, resolver configuration). Nothing is executed, so that is as
// safe as killing and survives a new Go version.
func noFilesRules() []rule {
	return []rule{
		{calls: "openat openat2 open newfstatat statx stat lstat readlinkat readlink faccessat faccessat2 access getcwd",
			errno: unix.ENOENT, reason: "no files"},
	}
}

// socketRules make sockets of the internet families. There is no AF_UNIX (it
// would reach abstract sockets of a shared network namespace), no AF_NETLINK,
// no AF_VSOCK and no raw or packet socket.
func socketRules() []rule {
	return []rule{
		{calls: "socket", when: inetSockets(), reason: "TCP and UDP over IPv4 and IPv6"},
		{calls: "socket socketpair", errno: unix.EAFNOSUPPORT, reason: "net probes other families and protocols and does without"},
		{calls: "connect bind listen", reason: "on the sockets above, or given ones"},
		{calls: "setsockopt", when: []conditions{
			{argIs(1, unix.SOL_IPV6), argIs(2, unix.IPV6_V6ONLY)},
			{argIs(1, unix.SOL_IPV6), argIs(2, unix.IPV6_UNICAST_HOPS)},
			{argIs(1, unix.SOL_IP), argIs(2, unix.IP_TTL)},
		}, reason: "what net sets on new sockets"},
	}
}

func inetSockets() (all []conditions) {
	const flags = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	for _, family := range []uint64{unix.AF_INET, unix.AF_INET6} {
		for kind, protocol := range map[uint64]uint64{
			unix.SOCK_STREAM: unix.IPPROTO_TCP,
			unix.SOCK_DGRAM:  unix.IPPROTO_UDP,
		} {
			for _, p := range []uint64{0, protocol} {
				all = append(all, conditions{
					argIs(0, family), argHas(1, kind), argLacks(1, ^(kind | flags)), argIs(2, p),
				})
			}
		}
	}
	return all
}

// readRules open what Jail.Root put there. The root is read-only anyway; the
// flags keep a writable /tmp out of a profile that does not need one.
func readRules() []rule {
	return []rule{
		{calls: "openat", when: []conditions{{argLacks(2, unix.O_WRONLY|unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_TMPFILE&^unix.O_DIRECTORY)}},
			reason: "resolver configuration and CA bundle"},
		{calls: "openat openat2 open", errno: unix.EACCES, reason: "no writing; openat2 hides its flags in memory"},
		{calls: "newfstatat statx stat lstat readlinkat readlink faccessat faccessat2 access getdents64 getcwd fstatfs",
			reason: "look at files of its root"},
	}
}

// fileRules are the whole life of a file except setting ids, modes above 0777
// and device nodes. They reach Jail.Dirs and /tmp, as far as the file modes
// let the child's uid.
func fileRules() []rule {
	return []rule{
		{calls: "open creat", errno: unix.ENOSYS, reason: "one way to open a file is enough"},
		{calls: "openat", when: []conditions{
			{argLacks(2, unix.O_CREAT|unix.O_TMPFILE&^unix.O_DIRECTORY)},
			{argLacks(3, 0o7000)},
		}, reason: "open, or create without special mode bits"},
		{calls: "openat openat2", errno: unix.EPERM, reason: "openat2 hides its mode in memory"},
		{calls: "newfstatat statx stat lstat readlinkat readlink faccessat faccessat2 access getdents64 getcwd fstatfs statfs",
			reason: "look"},
		{calls: "mkdirat", when: []conditions{{argLacks(2, 0o7000)}}, reason: "make directories"},
		{calls: "fchmod", when: []conditions{{argLacks(1, 0o7000)}}, reason: "set plain modes"},
		{calls: "fchmodat", when: []conditions{{argLacks(2, 0o7000)}}, reason: "set plain modes"},
		{calls: "mkdirat fchmod fchmodat fchmodat2 fchown fchownat", errno: unix.EPERM, reason: "no special bits, no other owner"},
		{calls: "unlinkat renameat renameat2 linkat symlinkat utimensat copy_file_range sendfile flock fadvise64 syncfs fchdir chdir",
			reason: "the rest of a file's life"},
	}
}
