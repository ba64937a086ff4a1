package seccomp

import (
	"encoding/binary"
	"encoding/json"
	"runtime"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// call is what the kernel shows to a filter.
type call struct {
	arch, nr uint32
	args     [6]uint64
}

// run executes a program as the kernel would. The machine of x/net/bpf reads big-endian, so the
// words are laid out that way.
func run(t testing.TB, insns []bpf.Instruction, c call) uint32 {
	t.Helper()
	vm, err := bpf.NewVM(insns)
	if err != nil {
		t.Fatal(err)
	}
	words := []uint32{c.nr, c.arch, 0, 0}
	for _, a := range c.args {
		words = append(words, uint32(a), uint32(a>>32))
	}
	var data []byte
	for _, w := range words {
		data = binary.BigEndian.AppendUint32(data, w)
	}
	v, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(v)
}

// want evaluates the profile naively.
func want(p *specs.LinuxSeccomp, a abi, c call) uint32 {
	fallback, _ := verdict(p.DefaultAction, p.DefaultErrnoRet)
	name := ""
	for n, nr := range syscalls[a.name] {
		if nr == c.nr {
			name = n
		}
	}
	var conditional []uint32
	for _, s := range p.Syscalls {
		v, _ := verdict(s.Action, s.ErrnoRet)
		if !slices.Contains(s.Names, name) || name == "" || v == fallback {
			continue
		}
		if len(s.Args) == 0 {
			return v
		}
		for _, alt := range alternatives(s.Args) {
			if !slices.ContainsFunc(alt, func(x specs.LinuxSeccompArg) bool { return !holds(x, a, c) }) {
				conditional = append(conditional, v)
			}
		}
	}
	if len(conditional) > 0 {
		return conditional[0]
	}
	return fallback
}

func holds(x specs.LinuxSeccompArg, a abi, c call) bool {
	have, value, datum := c.args[x.Index], x.Value, x.ValueTwo
	if !a.wide {
		have, value, datum = uint64(uint32(have)), uint64(uint32(value)), uint64(uint32(datum))
	}
	switch x.Op {
	case specs.OpEqualTo:
		return have == value
	case specs.OpNotEqual:
		return have != value
	case specs.OpGreaterThan:
		return have > value
	case specs.OpGreaterEqual:
		return have >= value
	case specs.OpLessThan:
		return have < value
	case specs.OpLessEqual:
		return have <= value
	default:
		return have&value == datum&value
	}
}

var interesting = []uint64{0, 1, 2, 16, 17, 38, 40, 0x8, 0x20000, 0x20008, 0x7e020000, 0x10000000, 0xffffffff, 1 << 32, 1<<32 + 1, 1<<63 | 5, ^uint64(0)}

// check compares the program with the profile for the named calls, or all.
func check(t *testing.T, p *specs.LinuxSeccomp, names ...string) {
	t.Helper()
	for n, a := range abis[runtime.GOARCH] {
		if n > 0 && !slices.Contains(p.Architectures, a.arch) {
			continue
		}
		insns, err := assemble(p, abis[runtime.GOARCH])
		if err != nil {
			t.Fatal(err)
		}
		last := uint32(0)
		for _, nr := range syscalls[a.name] {
			last = max(last, nr)
		}
		var only []uint32
		for _, name := range names {
			only = append(only, syscalls[a.name][name])
		}
		for nr := range last + 1 {
			if len(names) > 0 && !slices.Contains(only, nr) {
				continue
			}
			for _, v := range interesting {
				for _, w := range []uint64{0, v} {
					c := call{arch: a.audit, nr: nr, args: [6]uint64{v, w, w, w, w, w}}
					if got, want := run(t, insns, c), want(p, a, c); got != want {
						t.Fatalf("%s call %d args %x: %#x, want %#x", a.name, nr, c.args, got, want)
					}
				}
			}
		}
	}
}

func spec(caps ...string) *specs.Spec {
	return &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: caps}}, Linux: &specs.Linux{}}
}

func TestDefaultProfile(t *testing.T) {
	for _, caps := range [][]string{{}, {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE"}} {
		p := seccomp.DefaultProfile(spec(caps...))
		check(t, p)
		raw, err := Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d instructions", len(raw)/8)
	}
}

func TestEveryOperator(t *testing.T) {
	for _, op := range []specs.LinuxSeccompOperator{specs.OpEqualTo, specs.OpNotEqual, specs.OpGreaterThan,
		specs.OpGreaterEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpMaskedEqual} {
		for _, v := range interesting {
			check(t, &specs.LinuxSeccomp{
				DefaultAction: specs.ActErrno, Architectures: []specs.Arch{specs.ArchX86, specs.ArchARM},
				Syscalls: []specs.LinuxSyscall{
					{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: v, ValueTwo: 1<<33 | 3, Op: op}}},
					{Names: []string{"write", "close"}, Action: specs.ActTrap, Args: []specs.LinuxSeccompArg{
						{Index: 0, Value: v, ValueTwo: v, Op: op}, {Index: 1, Value: 17, Op: specs.OpEqualTo}}},
					{Names: []string{"open"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{
						{Index: 0, Value: v, Op: op}, {Index: 0, Value: 17, Op: specs.OpEqualTo}}},
				},
			}, "read", "write", "open", "stat")
		}
	}
}

func TestForeignAndNewerCalls(t *testing.T) {
	p := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow}}}
	insns, err := assemble(p, abis[runtime.GOARCH])
	if err != nil {
		t.Fatal(err)
	}
	native := abis[runtime.GOARCH][0].audit
	for name, c := range map[string]struct {
		call
		want uint32
	}{
		"another machine's": {call{arch: unix.AUDIT_ARCH_S390X}, unix.SECCOMP_RET_KILL_PROCESS},
		"32-bit, not asked": {call{arch: abis[runtime.GOARCH][1].audit, nr: 3}, unix.SECCOMP_RET_KILL_PROCESS},
		"newer":             {call{arch: native, nr: 9999}, unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		"allowed":           {call{arch: native, nr: unix.SYS_READ}, unix.SECCOMP_RET_ALLOW},
		"not allowed":       {call{arch: native, nr: unix.SYS_WRITE}, unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
	} {
		if got := run(t, insns, c.call); got != c.want {
			t.Errorf("%s: %#x, want %#x", name, got, c.want)
		}
	}
}

func FuzzCompile(f *testing.F) {
	doc, err := json.Marshal(seccomp.DefaultProfile(spec()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(doc)
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"action":"SCMP_ACT_ERRNO","args":[{"index":9,"op":"SCMP_CMP_EQ"}]}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		var p specs.LinuxSeccomp
		if json.Unmarshal(doc, &p) != nil {
			return
		}
		insns, err := assemble(&p, abis[runtime.GOARCH])
		if err != nil {
			return
		}
		if _, err := bpf.Assemble(insns); err != nil {
			t.Fatal(err)
		}
		run(t, insns, call{arch: abis[runtime.GOARCH][0].audit, nr: 1})
	})
}

func BenchmarkCompileDefault(b *testing.B) {
	p := seccomp.DefaultProfile(spec())
	for b.Loop() {
		if _, err := Compile(p); err != nil {
			b.Fatal(err)
		}
	}
}
