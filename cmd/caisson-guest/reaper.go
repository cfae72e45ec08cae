package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The reaper is process 1 of the users' PID namespace. It mounts /proc there,
// gives up root, and sleeps for ever; because it ignores SIGCHLD the kernel
// reaps every orphan for it. A second copy of this Go program would do the
// same at the price of 3 MB and 10 ms for each sandbox, and user processes
// would find our binary behind /proc/1/exe. So it is a program of about 700
// bytes that makes the system calls of a table: the loop that walks the table
// is machine code (reaper_GOARCH.go), the table is this file's.

// step is one system call. The loop stops at the first that fails, and exits
// with 1; after the last it sleeps.
type step struct{ nr, a, b, c, d, e uint64 }

const (
	reaperBase = 0x400000 // where the file is mapped, header included
	elfHeader  = 64 + 56
	stepSize   = 6 * 8
	nobody     = 65534
	allOnes    = ^uint64(0)
	sigIgn     = 1
)

// reaperSteps lists what the reaper does. data returns the address of bytes
// that are stored behind the table.
func reaperSteps(target string, data func([]byte) uint64) []step {
	signals := data(binary.LittleEndian.AppendUint64(nil, allOnes))
	ignore := data(binary.LittleEndian.AppendUint64(nil, sigIgn)) // handler; flags and mask follow as zero
	data(make([]byte, 24))
	proc := data([]byte("proc\x00"))
	at := data([]byte(target + "\x00"))
	return []step{
		// Guest root may send any signal; only SIGKILL and SIGSTOP could then
		// do harm, and the seccomp filter refuses those.
		{unix.SYS_RT_SIGPROCMASK, unix.SIG_BLOCK, signals, 0, 8, 0},
		{unix.SYS_RT_SIGACTION, uint64(unix.SIGCHLD), ignore, 0, 8, 0},
		{unix.SYS_MOUNT, proc, at, proc, noExec, 0},
		{unix.SYS_SETRESGID, nobody, nobody, nobody, 0, 0},
		{unix.SYS_SETRESUID, nobody, nobody, nobody, 0, 0}, // drops every capability
		{unix.SYS_WRITE, 1, signals, 1, 0, 0},              // tells PID 1 that all went well
		{unix.SYS_CLOSE, 0, 0, 0, 0, 0},                    // users can look at what it holds
		{unix.SYS_CLOSE, 1, 0, 0, 0, 0},
		{unix.SYS_CLOSE, 2, 0, 0, 0, 0},
	}
}

// reaperProgram returns the ELF file: header, one loadable segment with the
// loop, the table and its data.
func reaperProgram(target string) []byte {
	var data []byte
	count := len(reaperSteps(target, func([]byte) uint64 { return 0 }))
	dataAt := uint64(reaperBase + elfHeader + len(reaperCode) + count*stepSize + 8)
	steps := reaperSteps(target, func(b []byte) uint64 {
		at := dataAt + uint64(len(data))
		data = append(data, b...)
		return at
	})
	body := bytes.NewBuffer(bytes.Clone(reaperCode))
	binary.Write(body, binary.LittleEndian, steps)
	binary.Write(body, binary.LittleEndian, allOnes) // end of the table
	body.Write(data)
	return append(elfFor(uint64(elfHeader+body.Len())), body.Bytes()...)
}

func elfFor(size uint64) []byte {
	le := binary.LittleEndian
	h := []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	h = le.AppendUint16(h, 2) // executable
	h = le.AppendUint16(h, reaperMachine)
	h = le.AppendUint32(h, 1)
	h = le.AppendUint64(h, reaperBase+elfHeader) // entry
	h = le.AppendUint64(h, 64)                   // program header
	h = le.AppendUint64(h, 0)
	h = le.AppendUint32(h, 0)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} { // sizes and counts
		h = le.AppendUint16(h, v)
	}
	h = le.AppendUint32(h, 1)   // load
	h = le.AppendUint32(h, 4|1) // read, execute
	for _, v := range []uint64{0, reaperBase, reaperBase, size, size, 4096} {
		h = le.AppendUint64(h, v)
	}
	return h
}

// namespace is the users' PID, mount, IPC and UTS namespace, held open by the
// reaper's pidfd.
type namespace struct {
	pid   int // of the reaper, as we see it
	pidfd int
}

const userNamespaces = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// startReaper makes the namespace. dir is a directory of ours that the users'
// root does not contain; target is where /proc goes, before the root is moved.
func startReaper(dir, target string) (*namespace, error) {
	file := dir + "/init"
	if err := os.WriteFile(file, reaperProgram(target), 0o500); err != nil {
		return nil, fmt.Errorf("cannot write the reaper: %w", err)
	}
	defer os.Remove(file)
	null, err := os.OpenFile(newRoot+"/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot start the reaper: %w", err)
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start the reaper: %w", err)
	}
	defer r.Close()
	ns := &namespace{pidfd: -1}
	ns.pid, err = syscall.ForkExec(file, []string{"init"}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{},
		Files: []uintptr{null.Fd(), w.Fd(), null.Fd()},
		Sys:   &syscall.SysProcAttr{Cloneflags: userNamespaces, Setsid: true, PidFD: &ns.pidfd},
	})
	w.Close()
	if err != nil {
		return nil, fmt.Errorf("cannot start the reaper: %w", err)
	}
	r.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
		return nil, fmt.Errorf("cannot start the reaper: it gave up: %w", err)
	}
	return ns, nil
}
