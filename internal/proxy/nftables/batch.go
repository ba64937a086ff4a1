// Package nftables writes tables of nftables to the kernel by netlink, as far as the service proxy
// needs it. A Batch is one transaction: all of it takes effect, or nothing. There is no nft(8) in
// between, which reads a whole table before it changes one element of it, and no anonymous set, of
// which the kernel makes n in n² steps.
//
// Registers are those of 32 bits; R(0) to R(15). Keys and values are bytes as the kernel has them:
// every field of a concatenation starts at a multiple of four bytes.
package nftables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// mostElements is how many elements one message has: an attribute has 64 KiB at most.
const mostElements = 300

// Batch is one transaction. Its zero value is not usable; NewBatch makes one.
type Batch struct {
	table string
	buf   []byte
	what  []string // per message, for errors
	end   bool
}

// NewBatch starts a transaction on a table of the family inet.
func NewBatch(table string) *Batch {
	b := &Batch{table: table}
	b.control(unix.NFNL_MSG_BATCH_BEGIN)
	return b
}

// Empty reports whether nothing was added.
func (b *Batch) Empty() bool { return len(b.what) == 1 }

// Size is how many bytes are sent.
func (b *Batch) Size() int { return len(b.buf) }

func (b *Batch) control(kind uint16) {
	start := b.header(kind, 0, "batch", unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	b.close(start)
}

// header starts a message; close ends it.
func (b *Batch) header(kind, flags uint16, what string, family byte, res uint16) int {
	start := len(b.buf)
	b.buf = binary.NativeEndian.AppendUint32(b.buf, 0)
	b.buf = binary.NativeEndian.AppendUint16(b.buf, kind)
	b.buf = binary.NativeEndian.AppendUint16(b.buf, flags|unix.NLM_F_REQUEST)
	b.buf = binary.NativeEndian.AppendUint32(b.buf, uint32(len(b.what)))
	b.buf = binary.NativeEndian.AppendUint32(b.buf, 0)
	b.buf = append(b.buf, family, unix.NFNETLINK_V0)
	b.buf = binary.BigEndian.AppendUint16(b.buf, res)
	b.what = append(b.what, what)
	return start
}

func (b *Batch) close(start int) {
	binary.NativeEndian.PutUint32(b.buf[start:], uint32(len(b.buf)-start))
}

// message writes one message about the table.
func (b *Batch) message(kind, flags uint16, what string, attributes func()) {
	start := b.header(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, what, unix.NFPROTO_INET, 0)
	attributes()
	b.close(start)
}

func (b *Batch) bytes(kind uint16, data []byte) {
	b.buf = binary.NativeEndian.AppendUint16(b.buf, uint16(4+len(data)))
	b.buf = binary.NativeEndian.AppendUint16(b.buf, kind)
	b.buf = append(b.buf, data...)
	for len(b.buf)%4 != 0 {
		b.buf = append(b.buf, 0)
	}
}

func (b *Batch) text(kind uint16, s string) { b.bytes(kind, append([]byte(s), 0)) }

func (b *Batch) number(kind uint16, n uint32) { b.bytes(kind, binary.BigEndian.AppendUint32(nil, n)) }

func (b *Batch) long(kind uint16, n uint64) { b.bytes(kind, binary.BigEndian.AppendUint64(nil, n)) }

func (b *Batch) nest(kind uint16, inside func()) {
	start := len(b.buf)
	b.buf = append(b.buf, 0, 0, 0, 0)
	inside()
	binary.NativeEndian.PutUint16(b.buf[start:], uint16(len(b.buf)-start))
	binary.NativeEndian.PutUint16(b.buf[start+2:], kind|unix.NLA_F_NESTED)
}

// AddTable makes the table unless it exists.
func (b *Batch) AddTable() {
	b.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, "add table", func() { b.text(unix.NFTA_TABLE_NAME, b.table) })
}

// DeleteTable deletes the table, which must exist.
func (b *Batch) DeleteTable() {
	b.message(unix.NFT_MSG_DELTABLE, 0, "delete table", func() { b.text(unix.NFTA_TABLE_NAME, b.table) })
}

// Hook is where a base chain is called.
type Hook struct {
	Type     string // filter or nat
	Number   uint32 // unix.NF_INET_…
	Priority int32
}

// AddChain makes a chain; one with a hook is a base chain.
func (b *Batch) AddChain(name string, hook *Hook) {
	b.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, "add chain "+name, func() {
		b.text(unix.NFTA_CHAIN_TABLE, b.table)
		b.text(unix.NFTA_CHAIN_NAME, name)
		if hook == nil {
			return
		}
		b.nest(unix.NFTA_CHAIN_HOOK, func() {
			b.number(unix.NFTA_HOOK_HOOKNUM, hook.Number)
			b.number(unix.NFTA_HOOK_PRIORITY, uint32(hook.Priority))
		})
		b.number(unix.NFTA_CHAIN_POLICY, 1) // accept
		b.text(unix.NFTA_CHAIN_TYPE, hook.Type)
	})
}

// DeleteChain deletes a chain with its rules. It must exist, and nothing may lead to it any more.
func (b *Batch) DeleteChain(name string) {
	b.message(unix.NFT_MSG_DELCHAIN, 0, "delete chain "+name, func() {
		b.text(unix.NFTA_CHAIN_TABLE, b.table)
		b.text(unix.NFTA_CHAIN_NAME, name)
	})
}

// DeleteSet deletes a set with its elements. It must exist, and no rule may use it any more.
func (b *Batch) DeleteSet(name string) {
	b.message(unix.NFT_MSG_DELSET, 0, "delete set "+name, func() {
		b.text(unix.NFTA_SET_TABLE, b.table)
		b.text(unix.NFTA_SET_NAME, name)
	})
}

// AddRule appends a rule to a chain.
func (b *Batch) AddRule(chain string, expressions ...Expression) {
	b.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, "add rule to "+chain, func() {
		b.text(unix.NFTA_RULE_TABLE, b.table)
		b.text(unix.NFTA_RULE_CHAIN, chain)
		b.nest(unix.NFTA_RULE_EXPRESSIONS, func() {
			for _, e := range expressions {
				b.nest(unix.NFTA_LIST_ELEM, func() {
					b.text(unix.NFTA_EXPR_NAME, e.name)
					b.nest(unix.NFTA_EXPR_DATA, func() { e.data(b) })
				})
			}
		})
	})
}

// Type is a type of a key or a value as nft(8) shows it, and its length.
type Type struct {
	ID     uint32 // nft's numbers, six bits for each field
	Length uint32
	Fields []uint32 // their lengths
}

// Types of fields.
var (
	IPv4    = Type{ID: 7, Length: 4}
	IPv6    = Type{ID: 8, Length: 16}
	Proto   = Type{ID: 12, Length: 4}
	Port    = Type{ID: 13, Length: 4}
	Mark    = Type{ID: 19, Length: 4}
	Verdict = Type{ID: 0xffffff00, Length: 16}
)

// Concat is a type of several fields.
func Concat(types ...Type) Type {
	var out Type
	for _, t := range types {
		out.ID = out.ID<<6 | t.ID
		out.Length += t.Length
		out.Fields = append(out.Fields, t.Length)
	}
	return out
}

// Set is a set, or a map if it has values.
type Set struct {
	Name     string
	Key      Type
	Value    Type // zero for a set
	Ranges   bool // keys are ranges in some of their fields
	Learning bool // rules add elements, with timeouts
	Size     uint32
}

func (s Set) flags() uint32 {
	var f uint32
	if s.Value.Length > 0 {
		f |= unix.NFT_SET_MAP
	}
	if s.Ranges {
		f |= unix.NFT_SET_INTERVAL | setConcat
	}
	if s.Learning {
		f |= unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL
	}
	return f
}

// AddSet makes a set.
func (b *Batch) AddSet(s Set) {
	b.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, "add set "+s.Name, func() {
		b.text(unix.NFTA_SET_TABLE, b.table)
		b.text(unix.NFTA_SET_NAME, s.Name)
		b.number(unix.NFTA_SET_FLAGS, s.flags())
		b.number(unix.NFTA_SET_KEY_TYPE, s.Key.ID)
		b.number(unix.NFTA_SET_KEY_LEN, s.Key.Length)
		if s.Value.Length > 0 {
			b.number(unix.NFTA_SET_DATA_TYPE, s.Value.ID)
			b.number(unix.NFTA_SET_DATA_LEN, s.Value.Length)
		}
		b.number(unix.NFTA_SET_ID, uint32(len(b.what)))
		b.nest(unix.NFTA_SET_DESC, func() {
			if s.Size > 0 {
				b.number(unix.NFTA_SET_DESC_SIZE, s.Size)
			}
			if !s.Ranges {
				return
			}
			b.nest(setDescConcat, func() {
				for _, n := range s.Key.Fields {
					b.nest(unix.NFTA_LIST_ELEM, func() { b.number(setFieldLen, n) })
				}
			})
		})
	})
}

// Constants that x/sys/unix lacks (linux/netfilter/nf_tables.h).
const (
	setConcat     = 0x80
	setDescConcat = 2
	setFieldLen   = 1
	setElemKeyEnd = 10
)

// Element is one element of a set. Strings hold bytes, so that elements can be compared.
type Element struct {
	Key   string
	End   string // of a range; "" for one key
	Value string // of a map, unless it is a verdict
	Go    string // the chain to go to, for a map of verdicts
	Drop  bool   // instead of Go
	Pass  bool   // instead of Go: accept
	// Of a learning set, in milliseconds: how long it lasts after it was used, and from now on.
	Timeout, Expires uint64
}

// AddElements adds elements to a set. Those that it has already must be the same.
func (b *Batch) AddElements(set string, elements []Element) {
	b.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, set, elements)
}

// DeleteElements deletes elements, which must exist.
func (b *Batch) DeleteElements(set string, elements []Element) {
	b.elements(unix.NFT_MSG_DELSETELEM, 0, set, elements)
}

func (b *Batch) elements(kind, flags uint16, set string, elements []Element) {
	for len(elements) > 0 {
		n := min(mostElements, len(elements))
		b.message(kind, flags, "elements of "+set, func() {
			b.text(unix.NFTA_SET_ELEM_LIST_TABLE, b.table)
			b.text(unix.NFTA_SET_ELEM_LIST_SET, set)
			b.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
				for i := range elements[:n] {
					b.element(&elements[i], kind == unix.NFT_MSG_NEWSETELEM)
				}
			})
		})
		elements = elements[n:]
	}
}

func (b *Batch) element(e *Element, whole bool) {
	b.nest(unix.NFTA_LIST_ELEM, func() {
		b.nest(unix.NFTA_SET_ELEM_KEY, func() { b.bytes(unix.NFTA_DATA_VALUE, []byte(e.Key)) })
		if e.End != "" {
			b.nest(setElemKeyEnd, func() { b.bytes(unix.NFTA_DATA_VALUE, []byte(e.End)) })
		}
		if !whole {
			return
		}
		switch {
		case e.Value != "":
			b.nest(unix.NFTA_SET_ELEM_DATA, func() { b.bytes(unix.NFTA_DATA_VALUE, []byte(e.Value)) })
		case e.Go != "":
			b.nest(unix.NFTA_SET_ELEM_DATA, func() { b.verdict(gotoCode, e.Go) })
		case e.Drop:
			b.nest(unix.NFTA_SET_ELEM_DATA, func() { b.verdict(nfDrop, "") })
		case e.Pass:
			b.nest(unix.NFTA_SET_ELEM_DATA, func() { b.verdict(nfAccept, "") })
		}
		if e.Timeout > 0 {
			b.long(unix.NFTA_SET_ELEM_TIMEOUT, e.Timeout)
			b.long(unix.NFTA_SET_ELEM_EXPIRATION, e.Expires)
		}
	})
}

// verdict writes a verdict, with the chain of those that have one.
func (b *Batch) verdict(code uint32, chain string) {
	b.nest(unix.NFTA_DATA_VERDICT, func() {
		b.number(unix.NFTA_VERDICT_CODE, code)
		if chain != "" {
			b.text(unix.NFTA_VERDICT_CHAIN, chain)
		}
	})
}
