package main

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// The filter of every user process. It is not what isolates a sandbox (the
// sandbox kernel is); it keeps guest root and user namespaces away from what
// holds limits inside: mounts, control groups, process 1. There is no
// no_new_privs with it, because sudo must work.

// refusal is one rule. Without a test the call always fails with errno.
type refusal struct {
	nr    uint32
	errno unix.Errno
	test  argTest
}

// argTest looks at the low half of one argument. The zero value matches.
type argTest struct {
	arg  int
	mask uint32 // refuse if any of these bits is set, or
	same uint32 // refuse if equal
}

// firstProcess refuses to name process 1. Unlike Linux, the sandbox kernel
// lets root of a PID namespace kill or stop its init.
var firstProcess = argTest{same: 1}

var refusals = []refusal{
	// A namespace of one's own user would give CAP_SYS_ADMIN back.
	{unix.SYS_UNSHARE, unix.EPERM, argTest{mask: unix.CLONE_NEWUSER}},
	{unix.SYS_CLONE, unix.EPERM, argTest{mask: unix.CLONE_NEWUSER}},
	// Its flags lie in memory, out of a filter's sight. Callers fall back.
	{nr: unix.SYS_CLONE3, errno: unix.ENOSYS},
	{nr: unix.SYS_SETNS, errno: unix.EPERM},

	// Mounts: the control group file system would undo the task limit.
	{nr: unix.SYS_MOUNT, errno: unix.EPERM},
	{nr: unix.SYS_UMOUNT2, errno: unix.EPERM},
	{nr: unix.SYS_PIVOT_ROOT, errno: unix.EPERM},
	{nr: unix.SYS_MOVE_MOUNT, errno: unix.EPERM},
	{nr: unix.SYS_OPEN_TREE, errno: unix.EPERM},
	{nr: unix.SYS_OPEN_TREE_ATTR, errno: unix.EPERM},
	{nr: unix.SYS_FSOPEN, errno: unix.EPERM},
	{nr: unix.SYS_FSCONFIG, errno: unix.EPERM},
	{nr: unix.SYS_FSMOUNT, errno: unix.EPERM},
	{nr: unix.SYS_FSPICK, errno: unix.EPERM},
	{nr: unix.SYS_MOUNT_SETATTR, errno: unix.EPERM},

	{unix.SYS_KILL, unix.EPERM, firstProcess},
	{unix.SYS_TKILL, unix.EPERM, firstProcess},
	{unix.SYS_TGKILL, unix.EPERM, firstProcess},
	{unix.SYS_RT_SIGQUEUEINFO, unix.EPERM, firstProcess},
	{unix.SYS_RT_TGSIGQUEUEINFO, unix.EPERM, firstProcess},
	{unix.SYS_PIDFD_OPEN, unix.EPERM, firstProcess},

	// What container engines refuse too: the machine's state, and parts of a
	// kernel that are more often attacked than used.
	{nr: unix.SYS_KEYCTL, errno: unix.EPERM},
	{nr: unix.SYS_ADD_KEY, errno: unix.EPERM},
	{nr: unix.SYS_REQUEST_KEY, errno: unix.EPERM},
	{nr: unix.SYS_BPF, errno: unix.EPERM},
	{nr: unix.SYS_PERF_EVENT_OPEN, errno: unix.EPERM},
	{nr: unix.SYS_USERFAULTFD, errno: unix.EPERM},
	{nr: unix.SYS_IO_URING_SETUP, errno: unix.ENOSYS},
	{nr: unix.SYS_IO_URING_ENTER, errno: unix.ENOSYS},
	{nr: unix.SYS_IO_URING_REGISTER, errno: unix.ENOSYS},
	{nr: unix.SYS_OPEN_BY_HANDLE_AT, errno: unix.EPERM},
	{nr: unix.SYS_KEXEC_LOAD, errno: unix.EPERM},
	{nr: unix.SYS_KEXEC_FILE_LOAD, errno: unix.EPERM},
	{nr: unix.SYS_INIT_MODULE, errno: unix.EPERM},
	{nr: unix.SYS_FINIT_MODULE, errno: unix.EPERM},
	{nr: unix.SYS_DELETE_MODULE, errno: unix.EPERM},
	{nr: unix.SYS_REBOOT, errno: unix.EPERM},
	{nr: unix.SYS_SWAPON, errno: unix.EPERM},
	{nr: unix.SYS_SWAPOFF, errno: unix.EPERM},
	{nr: unix.SYS_ACCT, errno: unix.EPERM},
	{nr: unix.SYS_SYSLOG, errno: unix.EPERM},
	{nr: unix.SYS_SETTIMEOFDAY, errno: unix.EPERM},
	{nr: unix.SYS_CLOCK_SETTIME, errno: unix.EPERM},
	{nr: unix.SYS_ADJTIMEX, errno: unix.EPERM},
	{nr: unix.SYS_CLOCK_ADJTIME, errno: unix.EPERM},
	{nr: unix.SYS_QUOTACTL, errno: unix.EPERM},
}

// Offsets in struct seccomp_data, and the bit that marks the x32 ABI.
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
	x32Bit  = 0x40000000
)

func load(off uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
}

func ret(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}

func jump(op uint16, k uint32, yes, no int) unix.SockFilter {
	if yes > 255 || no > 255 {
		panic("seccomp filter: jump too long")
	}
	return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: uint8(yes), Jf: uint8(no)}
}

func fail(e unix.Errno) unix.SockFilter { return ret(unix.SECCOMP_RET_ERRNO | uint32(e)) }

// filterProgram compiles the rules. The search is binary: the program runs for
// every system call of every user process.
func filterProgram(arch uint32, rules []refusal) []unix.SockFilter {
	rules = slices.Clone(rules)
	slices.SortFunc(rules, func(a, b refusal) int { return int(a.nr) - int(b.nr) })
	p := []unix.SockFilter{
		load(offArch),
		jump(unix.BPF_JEQ, arch, 1, 0),
		fail(unix.ENOSYS),
		load(offNr),
		jump(unix.BPF_JGE, x32Bit, 0, 1),
		fail(unix.ENOSYS),
	}
	return append(p, search(rules)...)
}

func search(rules []refusal) []unix.SockFilter {
	if len(rules) == 0 {
		return []unix.SockFilter{ret(unix.SECCOMP_RET_ALLOW)}
	}
	if len(rules) == 1 {
		body := rules[0].body()
		return append(append([]unix.SockFilter{jump(unix.BPF_JEQ, rules[0].nr, 0, len(body))}, body...), ret(unix.SECCOMP_RET_ALLOW))
	}
	m := len(rules) / 2
	low, high := search(rules[:m]), search(rules[m:])
	return append(append([]unix.SockFilter{jump(unix.BPF_JGE, rules[m].nr, len(low), 0)}, low...), high...)
}

// body is what happens once the number matched; it always returns.
func (r refusal) body() []unix.SockFilter {
	allow := ret(unix.SECCOMP_RET_ALLOW)
	at := load(offArgs + 8*uint32(r.test.arg))
	switch {
	case r.test.mask != 0:
		return []unix.SockFilter{at, jump(unix.BPF_JSET, r.test.mask, 0, 1), fail(r.errno), allow}
	case r.test.same != 0:
		return []unix.SockFilter{at, jump(unix.BPF_JEQ, r.test.same, 0, 1), fail(r.errno), allow}
	default:
		return []unix.SockFilter{fail(r.errno)}
	}
}

// installFilter puts the filter on the calling thread, which has CAP_SYS_ADMIN.
func installFilter() error {
	p := filterProgram(auditArch, refusals)
	if err := setFilter(p); err != nil {
		return fmt.Errorf("cannot install the seccomp filter: %w", err)
	}
	return nil
}
