package seccomp

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
)

// test returns code that falls through if the condition holds, and otherwise skips the next rest
// instructions after itself.
func (a abi) test(arg specs.LinuxSeccompArg, rest int) []bpf.Instruction {
	low, high := offArgs+8*uint32(arg.Index), offArgs+8*uint32(arg.Index)+4
	lo, hi := uint32(arg.Value), uint32(arg.Value>>32)
	if arg.Op == specs.OpMaskedEqual {
		datum := arg.ValueTwo & arg.Value
		code := masked(low, lo, uint32(datum), rest)
		if a.wide {
			code = append(masked(high, hi, uint32(datum>>32), rest+len(code)), code...)
		}
		return code
	}
	code := testLow(arg.Op, low, lo, rest)
	if !a.wide {
		return code
	}
	return append(testHigh(arg.Op, high, hi, len(code), rest), code...)
}

func masked(offset, mask, datum uint32, rest int) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offset, Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: datum, SkipFalse: uint8(rest)},
	}
}

// testLow compares the low words. It is reached if the high words are equal.
func testLow(op specs.LinuxSeccompOperator, offset, value uint32, rest int) []bpf.Instruction {
	load := bpf.LoadAbsolute{Off: offset, Size: 4}
	holds := func(c bpf.JumpTest) []bpf.Instruction {
		return []bpf.Instruction{load, bpf.JumpIf{Cond: c, Val: value, SkipFalse: uint8(rest)}}
	}
	fails := func(c bpf.JumpTest) []bpf.Instruction {
		return []bpf.Instruction{load, bpf.JumpIf{Cond: c, Val: value, SkipTrue: uint8(rest)}}
	}
	switch op {
	case specs.OpEqualTo:
		return holds(bpf.JumpEqual)
	case specs.OpNotEqual:
		return fails(bpf.JumpEqual)
	case specs.OpGreaterThan:
		return holds(bpf.JumpGreaterThan)
	case specs.OpGreaterEqual:
		return holds(bpf.JumpGreaterOrEqual)
	case specs.OpLessThan:
		return fails(bpf.JumpGreaterOrEqual)
	default: // specs.OpLessEqual
		return fails(bpf.JumpGreaterThan)
	}
}

// testHigh compares the high words: it decides if they differ, and goes on to the comparison of
// the low words (n instructions) if they are equal.
func testHigh(op specs.LinuxSeccompOperator, offset, value uint32, n, rest int) []bpf.Instruction {
	holds, fails := uint8(n), uint8(n+rest)
	load := bpf.LoadAbsolute{Off: offset, Size: 4}
	switch op {
	case specs.OpEqualTo:
		return []bpf.Instruction{load, bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipFalse: fails}}
	case specs.OpNotEqual:
		return []bpf.Instruction{load, bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipFalse: holds}}
	case specs.OpGreaterThan, specs.OpGreaterEqual:
		return []bpf.Instruction{
			load,
			bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: value, SkipTrue: holds + 1},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipFalse: fails},
		}
	default: // specs.OpLessThan, specs.OpLessEqual
		return []bpf.Instruction{
			load,
			bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: value, SkipTrue: fails + 1},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipFalse: holds},
		}
	}
}
