package nft

import (
	"context"
	"encoding/json"
	"fmt"
)

// Chain is a base chain.
type Chain struct {
	Family, Table, Name string
}

// String returns how nft(8) names it.
func (c Chain) String() string { return fmt.Sprintf("%s %s %s", c.Family, c.Table, c.Name) }

// Dropping returns the chains that drop what is forwarded unless one of their rules lets it through, as a firewall's or
// Docker's do.
func Dropping(ctx context.Context) ([]Chain, error) {
	out, err := run(ctx, "", "-j", "list", "chains")
	if err != nil {
		return nil, err
	}
	var listed struct {
		Nftables []struct {
			Chain *struct{ Family, Table, Name, Hook, Policy string }
		}
	}
	if err := json.Unmarshal(out, &listed); err != nil {
		return nil, fmt.Errorf("nft: list chains: %w", err)
	}
	var chains []Chain
	for _, l := range listed.Nftables {
		if c := l.Chain; c != nil && c.Hook == "forward" && c.Policy == "drop" && (c.Family == "ip" || c.Family == "ip6" || c.Family == "inet") {
			chains = append(chains, Chain{c.Family, c.Table, c.Name})
		}
	}
	return chains, nil
}
