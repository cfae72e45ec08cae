package host

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// rule is one line of a filter: calls that get one answer, and why. The first
// rule that matches a call decides.
type rule struct {
	calls  string       // names, separated by spaces
	when   []conditions // any of them; nil for every use of the calls
	errno  unix.Errno   // 0 allows
	reason string
}

// conditions must all hold.
type conditions []condition

// condition looks at one argument, a register of 64 bits of which the kernel
// may use fewer. A rule that refuses must therefore test single bits that the
// kernel looks at, and never compare the whole.
type condition struct {
	arg   uint32
	test  bitTest
	value uint64
}

type bitTest uint8

const (
	equals bitTest = iota
	hasAny
	hasNone
)

func argIs(n uint32, v uint64) condition       { return condition{n, equals, v} }
func argHas(n uint32, bits uint64) condition   { return condition{n, hasAny, bits} }
func argLacks(n uint32, bits uint64) condition { return condition{n, hasNone, bits} }

// callNumber finds a call in calls, the ones that exist everywhere, and in
// oldCalls, which newer architectures never had. Any other name is an error,
// because a filter that refuses by name must not lose one in silence.
func callNumber(name string) (uint32, bool) {
	for _, list := range [][]call{calls, oldCalls} {
		for _, c := range list {
			if c.name == name {
				return c.nr, true
			}
		}
	}
	return 0, false
}

type call struct {
	name string
	nr   uint32
}

// onlyOn are calls that newer architectures do without. Their absence is no
// mistake in a list.
const onlyOn = " open creat mkdir mknod chmod stat lstat access readlink time epoll_wait poll "

// Offsets in struct seccomp_data. The low half of an argument comes first on
// the two architectures that we build for.
const (
	dataNr   = 0
	dataArch = 4
	dataArgs = 16
)

// compile turns rules into BPF, one short block for each call: no jump leaves
// its block, so a block can be read alone. See docs/rationale.md for why no
// library does it.
//
// Calls numbered for another architecture are refused. A filter that allows
// the rest does it with an error: it may lie under a sandbox kernel that traps
// its guest's calls, and a kill would win over the trap.
func compile(rules []rule, otherwise uint32) ([]bpf.Instruction, error) {
	foreign := uint32(unix.SECCOMP_RET_KILL_PROCESS)
	if otherwise == unix.SECCOMP_RET_ALLOW {
		foreign = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	}
	prog := []bpf.Instruction{
		bpf.LoadAbsolute{Off: dataArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: foreign}, // numbers of another architecture
		bpf.LoadAbsolute{Off: dataNr, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: 0x4000_0000, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}, // x32 on amd64
	}
	for _, r := range rules {
		if r.reason == "" {
			return nil, fmt.Errorf("cannot compile filter: no reason for %q", r.calls)
		}
		for _, name := range strings.Fields(r.calls) {
			nr, ok := callNumber(name)
			if !ok && strings.Contains(onlyOn, " "+name+" ") {
				continue
			}
			if !ok {
				return nil, fmt.Errorf("cannot compile filter: unknown system call %q", name)
			}
			prog = append(prog, r.blocks(nr)...)
		}
	}
	return append(prog, bpf.RetConstant{Val: otherwise}), nil
}

func (r rule) action() uint32 {
	if r.errno == 0 {
		return unix.SECCOMP_RET_ALLOW
	}
	return unix.SECCOMP_RET_ERRNO | uint32(r.errno)
}

// blocks tests for one call. The accumulator holds the call's number before
// and after each block.
func (r rule) blocks(nr uint32) (prog []bpf.Instruction) {
	ret := bpf.RetConstant{Val: r.action()}
	if r.when == nil {
		return []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: 1}, ret}
	}
	for _, all := range r.when {
		// Written from the end, because each jump must know how far it is.
		body := []bpf.Instruction{ret}
		for _, c := range slices.Backward(all) {
			body = append(c.orSkip(uint8(len(body))), body...)
		}
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: nr, SkipTrue: uint8(len(body)) + 1})
		prog = append(prog, body...)
		prog = append(prog, bpf.LoadAbsolute{Off: dataNr, Size: 4})
	}
	return prog
}

// orSkip skips the next miss instructions unless the condition holds.
func (c condition) orSkip(miss uint8) []bpf.Instruction {
	low := bpf.LoadAbsolute{Off: dataArgs + 8*c.arg, Size: 4}
	high := bpf.LoadAbsolute{Off: dataArgs + 8*c.arg + 4, Size: 4}
	l, h := uint32(c.value), uint32(c.value>>32)
	switch c.test {
	case equals:
		return []bpf.Instruction{
			high, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: h, SkipTrue: miss + 2},
			low, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: l, SkipTrue: miss},
		}
	case hasAny:
		return []bpf.Instruction{
			high, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: h, SkipTrue: 2},
			low, bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: l, SkipTrue: miss},
		}
	case hasNone:
		return []bpf.Instruction{
			high, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: h, SkipTrue: miss + 2},
			low, bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: l, SkipTrue: miss},
		}
	}
	panic("host: unknown test in a filter")
}

// installFilter puts the program on every thread of the process and sets
// no_new_privs on them. TSYNC carries both over from the calling thread, so the
// caller has locked its goroutine to it.
func installFilter(prog []bpf.Instruction) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot set no_new_privs: %w", err)
	}
	return loadFilter(prog)
}

// loadFilter puts the program on every thread of the process.
func loadFilter(prog []bpf.Instruction) error {
	raw, err := bpf.Assemble(prog)
	if err != nil {
		return fmt.Errorf("cannot assemble filter: %w", err)
	}
	thread, err := seccompSetFilter(raw)
	switch {
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL):
		return fmt.Errorf("cannot load filter: seccomp: %w: %w", ErrNotSupported, err)
	case err != nil:
		return fmt.Errorf("cannot load filter: %w", err)
	case thread != 0:
		return fmt.Errorf("cannot load filter: thread %d has another one", thread)
	}
	return nil
}

// Profile is the list of system calls that a jailed child may use. The zero
// Profile is refused.
//
// Its rules are a function, so that the processes that install no filter do
// not pay for them at their start.
type Profile struct {
	name  string
	lists []func() []rule
}

func (p Profile) String() string { return p.name }

// assemble compiles the profile. A call outside it kills the process, seen by
// the parent as SIGSYS: a parser that makes an unplanned call is either taken
// over or broken, and a refusal would let it try the next one.
func (p Profile) assemble() ([]bpf.Instruction, error) {
	rules := p.rules()
	if len(rules) == 0 {
		return nil, errors.New("profile allows nothing")
	}
	return compile(rules, unix.SECCOMP_RET_KILL_PROCESS)
}

func (p Profile) rules() (all []rule) {
	for _, list := range p.lists {
		all = append(all, list()...)
	}
	return all
}
