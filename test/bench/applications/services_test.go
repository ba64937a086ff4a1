package applications

import (
	"os"
	"testing"
)

// TestServices: what the bench measures can be measured.
func TestServices(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	all, err := Services(t.Context(), ServiceOptions{Few: 2, Many: 300, Endpoints: 5, Changes: 2, Connections: 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		for _, v := range s.Values {
			if v <= 0 {
				t.Errorf("%s: %v", s.Name, s.Values)
			}
		}
	}
	if len(all) != 4 || len(all[0].Values) != 2 || len(all[1].Values) != 20 || len(all[2].Values) != 20 {
		t.Errorf("%+v", all)
	}
}
