package main

import "golang.org/x/sys/unix"

const (
	reaperMachine = 62 // EM_X86_64
	auditArch     = unix.AUDIT_ARCH_X86_64
)

// reaperCode walks the table behind it; see step.
var reaperCode = []byte{
	0x48, 0x8d, 0x1d, 0x41, 0x00, 0x00, 0x00, // lea rbx, [rip+table]
	0x48, 0x8b, 0x03, //                   next: mov rax, [rbx]
	0x48, 0x85, 0xc0, //                         test rax, rax
	0x78, 0x21, //                               js wait
	0x48, 0x8b, 0x7b, 0x08, //                   mov rdi, [rbx+8]
	0x48, 0x8b, 0x73, 0x10, //                   mov rsi, [rbx+16]
	0x48, 0x8b, 0x53, 0x18, //                   mov rdx, [rbx+24]
	0x4c, 0x8b, 0x53, 0x20, //                   mov r10, [rbx+32]
	0x4c, 0x8b, 0x43, 0x28, //                   mov r8, [rbx+40]
	0x0f, 0x05, //                               syscall
	0x48, 0x85, 0xc0, //                         test rax, rax
	0x78, 0x0f, //                               js fail
	0x48, 0x83, 0xc3, 0x30, //                   add rbx, 48
	0xeb, 0xd7, //                               jmp next
	0xb8, 0x22, 0x00, 0x00, 0x00, //       wait: mov eax, 34 (pause)
	0x0f, 0x05, //                               syscall
	0xeb, 0xf7, //                               jmp wait
	0xbf, 0x01, 0x00, 0x00, 0x00, //       fail: mov edi, 1
	0xb8, 0x3c, 0x00, 0x00, 0x00, //             mov eax, 60 (exit)
	0x0f, 0x05, //                               syscall
	0x0f, 0x1f, 0x00, //                         nop
} // table:
