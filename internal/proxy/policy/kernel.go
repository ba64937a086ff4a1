package policy

import (
	nft "wherry.dev/internal/proxy/nftables"
)

// kernel writes the table.
type kernel struct {
	conn          *nft.Conn
	table, bridge string
	numbers       numbers
	told          content // what the table has
}

// TableName is the name of an instance's table.
func TableName(instance string) string { return "wherry-" + instance + "-policy" }

// replace writes the whole table, in one transaction with the removal of what was there.
func (k *kernel) replace(p *Plan) error {
	want := k.numbers.content(p)
	b := nft.NewBatch(k.table)
	b.AddTable() // so that there is one to delete
	b.DeleteTable()
	b.AddTable()
	writeLayout(b, k.bridge)
	want.change(b, content{})
	return k.commit(b, want)
}

// apply writes what is different from what the kernel was told.
func (k *kernel) apply(p *Plan) error {
	want := k.numbers.content(p)
	b := nft.NewBatch(k.table)
	want.change(b, k.told)
	return k.commit(b, want)
}

func (k *kernel) commit(b *nft.Batch, want content) error {
	if err := k.conn.Commit(b); err != nil {
		return err
	}
	k.told = want
	return nil
}
