// Package podinit makes the program that is the first process of a PID namespace that a pod's
// containers share (docs/adr/0010-the-pods-init-is-a-few-instructions.md).
package podinit

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"runtime"

	"wherry.dev/internal/cri/crierror"
)

// initCode is the first process of a pod's shared PID namespace. It only adopts orphans
// and lets the kernel reap them: it sets SIGCHLD to SIG_IGN, reaps what exited before that,
// which the kernel leaves to it, and sleeps for ever. As a re-exec of Wherry it would cost
// tens of megabytes and milliseconds per pod, so it is these few instructions, wrapped
// into an executable:
//
//	rt_sigaction(SIGCHLD, &act, NULL, 8)   act.handler = SIG_IGN, all else 0
//	for (;;) {
//		while (wait4(-1, NULL, WNOHANG | __WALL, NULL) > 0) {}
//		pause()
//	}
var initCode = map[string][]byte{
	"amd64": {
		0xb8, 13, 0, 0, 0, // mov  $13, %eax        rt_sigaction
		0xbf, 17, 0, 0, 0, // mov  $17, %edi        SIGCHLD
		0x48, 0x8d, 0x35, 45, 0, 0, 0, // lea  act(%rip), %rsi
		0x31, 0xd2, // xor  %edx, %edx
		0x41, 0xba, 8, 0, 0, 0, // mov  $8, %r10d
		0x0f, 0x05, // syscall
		0xb8, 61, 0, 0, 0, // mov  $61, %eax        wait4
		0xbf, 0xff, 0xff, 0xff, 0xff, // mov  $-1, %edi
		0x31, 0xf6, // xor  %esi, %esi
		0xba, 1, 0, 0, 0x40, // mov  $0x40000001, %edx
		0x45, 0x31, 0xd2, // xor  %r10d, %r10d
		0x0f, 0x05, // syscall
		0x85, 0xc0, // test %eax, %eax
		0x7f, 0xe6, // jg   back to wait4
		0xb8, 34, 0, 0, 0, // mov  $34, %eax        pause
		0x0f, 0x05, // syscall
		0xeb, 0xdd, // jmp  back to wait4
	},
	"arm64": words(
		0xd28010c8, // mov  x8, #134        rt_sigaction
		0xd2800220, // mov  x0, #17         SIGCHLD
		0x10000281, // adr  x1, act         20 instructions on
		0xd2800002, // mov  x2, #0
		0xd2800103, // mov  x3, #8
		0xd4000001, // svc  #0
		0xd2802088, // mov  x8, #260        wait4
		0x92800000, // mov  x0, #-1
		0xd2800001, // mov  x1, #0
		0x52800022, // mov  w2, #1
		0x72a80002, // movk w2, #0x4000, lsl #16
		0xd2800003, // mov  x3, #0
		0xd4000001, // svc  #0
		0x7100001f, // cmp  w0, #0
		0x54ffff0c, // b.gt back to wait4
		0xd2800928, // mov  x8, #73         ppoll(NULL, 0, NULL, NULL): arm64 has no pause
		0xd2800000, // mov  x0, #0
		0xd2800001, // mov  x1, #0
		0xd2800002, // mov  x2, #0
		0xd2800003, // mov  x3, #0
		0xd4000001, // svc  #0
		0x17fffff1, // b    back to wait4
	),
}

func words(ws ...uint32) []byte {
	var b []byte
	for _, w := range ws {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

var elfMachines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// Program returns the static executable.
func Program() ([]byte, error) {
	code, ok := initCode[runtime.GOARCH]
	if !ok {
		return nil, crierror.Unimplemented("a shared PID namespace (shareProcessNamespace) on " + runtime.GOARCH)
	}
	return makeELF(elfMachines[runtime.GOARCH], append(bytes.Clone(code), sigIgnore()...))
}

// sigIgnore returns the kernel's struct sigaction: handler, flags, restorer, mask.
func sigIgnore() []byte {
	act := make([]byte, 32)
	binary.LittleEndian.PutUint64(act, 1) // SIG_IGN
	return act
}

// makeELF wraps code in an executable with one segment.
func makeELF(machine elf.Machine, code []byte) ([]byte, error) {
	const base, headers = 0x400000, 64 + 56
	size := uint64(headers + len(code))
	h := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Entry: base + headers, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
	}
	p := elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base,
		Filesz: size, Memsz: size, Align: 0x1000,
	}
	var b bytes.Buffer
	for _, part := range []any{h, p, code} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			return nil, fmt.Errorf("build the init program of a pod: %w", err)
		}
	}
	return b.Bytes(), nil
}
