// Package seccomp compiles OCI seccomp profiles to the BPF programs that the kernel runs, as
// libseccomp does in the OCI runtimes. There it takes 10 to 16 ms for each container; here a
// program is compiled once and handed over.
//
// The program is a binary search over the numbers of the system calls, with runs of
// equal verdicts merged, so that any call is decided in about ten instructions.
//
//go:generate go run ./gen
package seccomp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// ErrUnsupported marks profiles that use something this compiler cannot do; the OCI runtime
// compiles those itself.
var ErrUnsupported = errors.New("not supported by this compiler")

// Offsets in struct seccomp_data (seccomp(2)).
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// x32Bit marks calls through the x32 ABI, which no distribution enables by default: they get the
// default verdict.
const x32Bit = 0x40000000

// abi is one calling convention that the machine runs.
type abi struct {
	name  string // of its table
	audit uint32 // AUDIT_ARCH_
	arch  specs.Arch
	wide  bool // 64-bit arguments
}

var abis = map[string][]abi{
	"amd64": {{"amd64", unix.AUDIT_ARCH_X86_64, specs.ArchX86_64, true}, {"386", unix.AUDIT_ARCH_I386, specs.ArchX86, false}},
	"arm64": {{"arm64", unix.AUDIT_ARCH_AARCH64, specs.ArchAARCH64, true}, {"arm", unix.AUDIT_ARCH_ARM, specs.ArchARM, false}},
}

// Compile returns the program for this machine, as the kernel's struct sock_filter array.
func Compile(p *specs.LinuxSeccomp) ([]byte, error) {
	insns, err := assemble(p, abis[runtime.GOARCH])
	if err != nil {
		return nil, fmt.Errorf("compile seccomp profile: %w", err)
	}
	raw, err := bpf.Assemble(insns)
	if err != nil {
		return nil, fmt.Errorf("compile seccomp profile: %w", err)
	}
	const maxInstructions = 4096 // BPF_MAXINSNS
	if len(raw) > maxInstructions {
		return nil, fmt.Errorf("compile seccomp profile: %d instructions: %w", len(raw), ErrUnsupported)
	}
	out := make([]byte, 0, 8*len(raw))
	for _, i := range raw {
		out = binary.NativeEndian.AppendUint16(out, i.Op)
		out = append(out, i.Jt, i.Jf)
		out = binary.NativeEndian.AppendUint32(out, i.K)
	}
	return out, nil
}

// assemble joins the sections of the ABIs behind one dispatcher.
func assemble(p *specs.LinuxSeccomp, machine []abi) ([]bpf.Instruction, error) {
	if len(machine) == 0 || p.ListenerPath != "" || len(p.Flags) > 0 {
		return nil, ErrUnsupported
	}
	fallback, err := verdict(p.DefaultAction, p.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	out := []bpf.Instruction{bpf.LoadAbsolute{Off: offArch, Size: 4}}
	for n, a := range machine {
		if n > 0 && !slices.Contains(p.Architectures, a.arch) {
			continue // the native one is always filtered
		}
		rules, err := rulesFor(p, a, fallback)
		if err != nil {
			return nil, err
		}
		section := a.section(rules, fallback)
		out = append(out,
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: a.audit, SkipTrue: 1},
			bpf.Jump{Skip: uint32(len(section))})
		out = append(out, section...)
	}
	return append(out, bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS}), nil // a foreign ABI
}

// verdict translates an action to the program's return value.
func verdict(a specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	data := uint32(unix.EPERM)
	if errno != nil {
		data = uint32(*errno)
	}
	if data > 0xffff {
		return 0, fmt.Errorf("errno %d is out of range", data)
	}
	switch a {
	case specs.ActAllow:
		return unix.SECCOMP_RET_ALLOW, nil
	case specs.ActErrno:
		return unix.SECCOMP_RET_ERRNO | data, nil
	case specs.ActKill, specs.ActKillThread:
		return unix.SECCOMP_RET_KILL_THREAD, nil
	case specs.ActKillProcess:
		return unix.SECCOMP_RET_KILL_PROCESS, nil
	case specs.ActTrap:
		return unix.SECCOMP_RET_TRAP, nil
	case specs.ActLog:
		return unix.SECCOMP_RET_LOG, nil
	case specs.ActTrace:
		return unix.SECCOMP_RET_TRACE | data, nil
	case specs.ActNotify:
		return 0, fmt.Errorf("action %s: %w", a, ErrUnsupported)
	}
	return 0, fmt.Errorf("unknown seccomp action %q", a)
}

// rule is a verdict for one system call: always, or if all conditions hold.
type rule struct {
	verdict uint32
	args    []specs.LinuxSeccompArg
}

// rulesFor collects the rules of each system call that the ABI has. As in libseccomp and the
// runtimes on it: a name that the ABI lacks is ignored, and so is a rule that repeats the
// default; an unconditional rule wins over conditional ones; and two conditions on the same
// argument in one entry are alternatives.
func rulesFor(p *specs.LinuxSeccomp, a abi, fallback uint32) (map[uint32][]rule, error) {
	out := map[uint32][]rule{}
	for _, s := range p.Syscalls {
		v, err := verdict(s.Action, s.ErrnoRet)
		if err != nil {
			return nil, err
		}
		if err := checkArgs(s.Args); err != nil {
			return nil, err
		}
		if v == fallback {
			continue
		}
		for _, name := range s.Names {
			nr, ok := syscalls[a.name][name]
			if !ok {
				continue
			}
			for _, args := range alternatives(s.Args) {
				out[nr] = append(out[nr], rule{v, args})
			}
		}
	}
	for nr, rs := range out {
		if i := slices.IndexFunc(rs, func(r rule) bool { return len(r.args) == 0 }); i >= 0 {
			out[nr] = rs[i : i+1]
		}
	}
	return out, nil
}

// maxArgs bounds the conditions of one entry, so that every jump over them fits into BPF's eight
// bits.
const maxArgs = 6

func checkArgs(args []specs.LinuxSeccompArg) error {
	ops := []specs.LinuxSeccompOperator{specs.OpEqualTo, specs.OpNotEqual, specs.OpGreaterThan, specs.OpGreaterEqual,
		specs.OpLessThan, specs.OpLessEqual, specs.OpMaskedEqual}
	for _, a := range args {
		if a.Index >= maxArgs {
			return fmt.Errorf("argument index %d is out of range: system calls have six arguments", a.Index)
		}
		if !slices.Contains(ops, a.Op) {
			return fmt.Errorf("unknown seccomp operator %q", a.Op)
		}
	}
	return nil
}

func alternatives(args []specs.LinuxSeccompArg) [][]specs.LinuxSeccompArg {
	seen := map[uint]bool{}
	for _, a := range args {
		if seen[a.Index] {
			var each [][]specs.LinuxSeccompArg
			for _, a := range args {
				each = append(each, []specs.LinuxSeccompArg{a})
			}
			return each
		}
		seen[a.Index] = true
	}
	return [][]specs.LinuxSeccompArg{args}
}

// span is a range of system calls with the same program.
type span struct {
	first uint32
	code  []bpf.Instruction // ends in returns on every path
}

// section returns the program for one ABI.
func (a abi) section(rules map[uint32][]rule, fallback uint32) []bpf.Instruction {
	last := uint32(0)
	for _, nr := range syscalls[a.name] {
		last = max(last, nr)
	}
	// A call newer than our table returns ENOSYS instead of EPERM: the C library then does
	// without it.
	unknown := fallback
	if fallback == unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM) {
		unknown = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	}
	spans := []span{{first: last + 1, code: ret(unknown)}}
	if a.name == "amd64" {
		spans = append(spans, span{first: x32Bit, code: ret(fallback)})
	}
	for nr := range last + 1 {
		spans = append(spans, span{first: nr, code: a.decide(rules[nr], fallback)})
	}
	slices.SortFunc(spans, func(x, y span) int { return cmp.Compare(x.first, y.first) })
	spans = slices.CompactFunc(spans, func(x, y span) bool { return slices.Equal(x.code, y.code) })
	return append([]bpf.Instruction{bpf.LoadAbsolute{Off: offNumber, Size: 4}}, search(spans)...)
}

func ret(v uint32) []bpf.Instruction { return []bpf.Instruction{bpf.RetConstant{Val: v}} }

// search returns code that finds the span of the number in the accumulator.
func search(spans []span) []bpf.Instruction {
	if len(spans) == 1 {
		return spans[0].code
	}
	mid := len(spans) / 2
	low, high := search(spans[:mid]), search(spans[mid:])
	out := []bpf.Instruction{
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: spans[mid].first, SkipFalse: 1},
		bpf.Jump{Skip: uint32(len(low))},
	}
	return append(append(out, low...), high...)
}

// decide returns the program of one system call.
func (a abi) decide(rules []rule, fallback uint32) []bpf.Instruction {
	var out []bpf.Instruction
	for _, r := range rules {
		if len(r.args) == 0 {
			return append(out, bpf.RetConstant{Val: r.verdict})
		}
		code := []bpf.Instruction{bpf.RetConstant{Val: r.verdict}}
		for _, arg := range slices.Backward(r.args) {
			code = append(a.test(arg, len(code)), code...)
		}
		out = append(out, code...)
	}
	return append(out, bpf.RetConstant{Val: fallback})
}
