package proxy

import (
	"errors"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	nft "wherry.dev/internal/proxy/nftables"
)

// kernel writes the table.
type kernel struct {
	conn   *nft.Conn
	table  string
	layout layout
	made   map[string]bool // chains of pickers and learners
}

// replace writes the whole table, in one transaction with the removal of what was there. Connections
// keep their endpoints, because connection tracking has these; clients with affinity keep theirs,
// too.
func (k *kernel) replace(s *state) error {
	learned, err := k.learned()
	if err != nil {
		return err
	}
	b := nft.NewBatch(k.table)
	b.AddTable() // so that there is one to delete
	b.DeleteTable()
	b.AddTable()
	writeLayout(b, k.layout)
	made, c := map[string]bool{}, s.all()
	c.write(b, made)
	for name, elements := range learned {
		b.AddElements(name, slices.DeleteFunc(elements, func(e nft.Element) bool { return !s.valid(name, e) }))
	}
	if err := k.conn.Commit(b); err != nil {
		return err
	}
	k.made = made
	return nil
}

// learned returns the clients that have an endpoint, by the name of the map. Those of a table with
// another layout are left out.
func (k *kernel) learned() (map[string][]nft.Element, error) {
	out := map[string][]nft.Element{}
	for _, f := range families {
		for _, prefix := range sides {
			name := prefix + affinities + f.suffix
			elements, err := k.conn.Elements(k.table, name)
			if err != nil {
				return nil, err
			}
			key, value := int(2*f.address.Length+8), int(f.address.Length+4)
			out[name] = slices.DeleteFunc(elements, func(e nft.Element) bool {
				return len(e.Key) != key || len(e.Value) != value || e.Timeout == 0 || e.Expires == 0
			})
		}
	}
	return out, nil
}

// mostExpired is how often clients may expire between a look and the removal of others.
const mostExpired = 5

// unlearn removes clients whose endpoint is none any more. It comes after the transaction that
// removed the endpoint: from then on nobody gets it anew.
func (k *kernel) unlearn(s *state) error {
	for try := 1; ; try++ {
		learned, err := k.learned()
		if err != nil {
			return err
		}
		b := nft.NewBatch(k.table)
		for name, elements := range learned {
			b.DeleteElements(name, slices.DeleteFunc(elements, func(e nft.Element) bool { return s.valid(name, e) }))
		}
		if err = k.conn.Commit(b); !errors.Is(err, unix.ENOENT) || try == mostExpired {
			return err
		}
	}
}

// apply writes a change in one transaction.
func (k *kernel) apply(s *state, c change) error {
	b := nft.NewBatch(k.table)
	made := maps.Clone(k.made)
	c.write(b, made)
	if err := k.conn.Commit(b); err != nil {
		return err
	}
	k.made = made
	if c.sticky {
		return k.unlearn(s)
	}
	return nil
}

// TableName is the name of an instance's table.
func TableName(instance string) string { return "wherry-" + instance + "-proxy" }

// Remove removes a table that a proxy left, whether it runs or not.
func Remove(table string) error {
	conn, err := nft.Open()
	if err != nil {
		return err
	}
	return errors.Join(conn.Remove(table), conn.Close())
}
