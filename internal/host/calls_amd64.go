package host

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

var oldCalls = []call{
	{"access", unix.SYS_ACCESS},
	{"chmod", unix.SYS_CHMOD},
	{"creat", unix.SYS_CREAT},
	{"epoll_wait", unix.SYS_EPOLL_WAIT},
	{"lstat", unix.SYS_LSTAT},
	{"mkdir", unix.SYS_MKDIR},
	{"mknod", unix.SYS_MKNOD},
	{"open", unix.SYS_OPEN},
	{"poll", unix.SYS_POLL},
	{"readlink", unix.SYS_READLINK},
	{"stat", unix.SYS_STAT},
	{"time", unix.SYS_TIME},
}
