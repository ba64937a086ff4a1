package nftables

import "golang.org/x/sys/unix"

// Expression is a step of a rule. A step that does not match ends the rule.
type Expression struct {
	name string
	data func(*Batch)
}

// Register is a register of 32 bits.
type Register uint32

// R returns register n; data longer than 32 bits go on in the next ones.
func R(n int) Register { return Register(unix.NFT_REG32_00 + n) }

const (
	nfDrop, nfAccept              = uint32(0), uint32(1)
	jumpCode, gotoCode, leaveCode = ^uint32(2), ^uint32(3), ^uint32(4) // NFT_JUMP -3, NFT_GOTO -4, NFT_RETURN -5
)

// Meta loads what the kernel knows of a packet (unix.NFT_META_…).
func Meta(key uint32, to Register) Expression {
	return Expression{"meta", func(b *Batch) {
		b.number(unix.NFTA_META_DREG, uint32(to))
		b.number(unix.NFTA_META_KEY, key)
	}}
}

// Bases of Payload.
const (
	Network   = unix.NFT_PAYLOAD_NETWORK_HEADER
	Transport = unix.NFT_PAYLOAD_TRANSPORT_HEADER
)

// Payload loads bytes of a packet.
func Payload(base, offset, length uint32, to Register) Expression {
	return Expression{"payload", func(b *Batch) {
		b.number(unix.NFTA_PAYLOAD_DREG, uint32(to))
		b.number(unix.NFTA_PAYLOAD_BASE, base)
		b.number(unix.NFTA_PAYLOAD_OFFSET, offset)
		b.number(unix.NFTA_PAYLOAD_LEN, length)
	}}
}

// Ct loads what connection tracking knows (unix.NFT_CT_…).
func Ct(key uint32, to Register) Expression {
	return Expression{"ct", func(b *Batch) {
		b.number(unix.NFTA_CT_DREG, uint32(to))
		b.number(unix.NFTA_CT_KEY, key)
	}}
}

// CtOriginal loads it as it was in the first packet, before any translation.
func CtOriginal(key uint32, to Register) Expression {
	return Expression{"ct", func(b *Batch) {
		b.number(unix.NFTA_CT_DREG, uint32(to))
		b.number(unix.NFTA_CT_KEY, key)
		b.bytes(unix.NFTA_CT_DIRECTION, []byte{0})
	}}
}

// SourceType loads the type of the source address (unix.RTN_…).
func SourceType(to Register) Expression {
	return Expression{"fib", func(b *Batch) {
		b.number(unix.NFTA_FIB_DREG, uint32(to))
		b.number(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE)
		b.number(unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_SADDR)
	}}
}

// Equal matches if a register has the value.
func Equal(r Register, value []byte) Expression { return compare(r, unix.NFT_CMP_EQ, value) }

// Differs matches if a register has another value.
func Differs(r Register, value []byte) Expression { return compare(r, unix.NFT_CMP_NEQ, value) }

func compare(r Register, op uint32, value []byte) Expression {
	return Expression{"cmp", func(b *Batch) {
		b.number(unix.NFTA_CMP_SREG, uint32(r))
		b.number(unix.NFTA_CMP_OP, op)
		b.nest(unix.NFTA_CMP_DATA, func() { b.bytes(unix.NFTA_DATA_VALUE, value) })
	}}
}

// And keeps only the bits of a register that the mask has.
func And(r Register, mask []byte) Expression {
	return Expression{"bitwise", func(b *Batch) {
		b.number(unix.NFTA_BITWISE_SREG, uint32(r))
		b.number(unix.NFTA_BITWISE_DREG, uint32(r))
		b.number(unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		b.nest(unix.NFTA_BITWISE_MASK, func() { b.bytes(unix.NFTA_DATA_VALUE, mask) })
		b.nest(unix.NFTA_BITWISE_XOR, func() { b.bytes(unix.NFTA_DATA_VALUE, make([]byte, len(mask))) })
	}}
}

// In matches if a set has the key that begins in the register.
func In(set string, key Register) Expression { return lookup(set, key, 0) }

// NotIn matches if it does not.
func NotIn(set string, key Register) Expression { return lookup(set, key, unix.NFT_LOOKUP_F_INV) }

func lookup(set string, key Register, flags uint32) Expression {
	return Expression{"lookup", func(b *Batch) {
		b.text(unix.NFTA_LOOKUP_SET, set)
		b.number(unix.NFTA_LOOKUP_SREG, uint32(key))
		if flags != 0 {
			b.number(unix.NFTA_LOOKUP_FLAGS, flags)
		}
	}}
}

// Get loads a map's value for a key; without one, the rule ends.
func Get(set string, key, to Register) Expression {
	return Expression{"lookup", func(b *Batch) {
		b.text(unix.NFTA_LOOKUP_SET, set)
		b.number(unix.NFTA_LOOKUP_SREG, uint32(key))
		b.number(unix.NFTA_LOOKUP_DREG, uint32(to))
	}}
}

// Dispatch goes where a map of verdicts says.
func Dispatch(set string, key Register) Expression { return Get(set, key, unix.NFT_REG_VERDICT) }

// Random loads a random number below n.
func Random(n uint32, to Register) Expression {
	return Expression{"numgen", func(b *Batch) {
		b.number(unix.NFTA_NG_DREG, uint32(to))
		b.number(unix.NFTA_NG_MODULUS, n)
		b.number(unix.NFTA_NG_TYPE, unix.NFT_NG_RANDOM)
	}}
}

// Learn puts key and value into a learning map, for so many milliseconds.
func Learn(set string, key, value Register, milliseconds uint64) Expression {
	return Expression{"dynset", func(b *Batch) {
		b.text(unix.NFTA_DYNSET_SET_NAME, set)
		b.number(unix.NFTA_DYNSET_OP, unix.NFT_DYNSET_OP_UPDATE)
		b.number(unix.NFTA_DYNSET_SREG_KEY, uint32(key))
		b.number(unix.NFTA_DYNSET_SREG_DATA, uint32(value))
		b.long(unix.NFTA_DYNSET_TIMEOUT, milliseconds)
	}}
}

// Translate sends the connection to the address and port in the registers. The family is NFPROTO_….
func Translate(family uint32, address, port Register) Expression {
	return Expression{"nat", func(b *Batch) {
		b.number(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
		b.number(unix.NFTA_NAT_FAMILY, family)
		b.number(unix.NFTA_NAT_REG_ADDR_MIN, uint32(address))
		b.number(unix.NFTA_NAT_REG_PROTO_MIN, uint32(port))
	}}
}

// Masquerade gives the connection the address of the outgoing link as its source.
func Masquerade() Expression {
	const fullyRandom = 1 << 4 // NF_NAT_RANGE_PROTO_RANDOM_FULLY
	return Expression{"masq", func(b *Batch) { b.number(unix.NFTA_MASQ_FLAGS, fullyRandom) }}
}

// Reset answers with a TCP reset. Unlike Reject's answers, the kernel does not limit how many of them
// go out in a second.
func Reset() Expression {
	return Expression{"reject", func(b *Batch) { b.number(unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_TCP_RST) }}
}

// Reject answers that the port cannot be reached.
func Reject() Expression {
	return Expression{"reject", func(b *Batch) {
		b.number(unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_ICMPX_UNREACH)
		b.bytes(unix.NFTA_REJECT_ICMP_CODE, []byte{unix.NFT_REJECT_ICMPX_PORT_UNREACH})
	}}
}

// Drop drops the packet.
func Drop() Expression { return verdict(nfDrop, "") }

// Accept ends the base chain.
func Accept() Expression { return verdict(nfAccept, "") }

// Jump continues in another chain, and comes back.
func Jump(chain string) Expression { return verdict(jumpCode, chain) }

// Leave ends the chain.
func Leave() Expression { return verdict(leaveCode, "") }

func verdict(code uint32, chain string) Expression {
	return Expression{"immediate", func(b *Batch) {
		b.number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		b.nest(unix.NFTA_IMMEDIATE_DATA, func() { b.verdict(code, chain) })
	}}
}
