package stats

import (
	"bufio"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Network returns the usage of a pod's interfaces, of which primary is the name of the first. doc
// is what the kernel has in /proc/net/dev.
func Network(doc, primary string) *runtimeapi.NetworkUsage {
	u := &runtimeapi.NetworkUsage{Timestamp: time.Now().UnixNano()}
	for _, i := range parseNetDev(doc) {
		switch i.GetName() {
		case "lo":
		case primary:
			u.DefaultInterface = i
		default:
			u.Interfaces = append(u.Interfaces, i)
		}
	}
	return u
}

// parseNetDev reads /proc/net/dev: name, then eight counters in, eight out (proc(5)).
func parseNetDev(doc string) []*runtimeapi.NetworkInterfaceUsage {
	var out []*runtimeapi.NetworkInterfaceUsage
	sc := bufio.NewScanner(strings.NewReader(doc))
	for sc.Scan() {
		name, rest, ok := strings.Cut(sc.Text(), ":")
		f := strings.Fields(rest)
		if !ok || len(f) < 11 {
			continue
		}
		var n [11]uint64
		valid := true
		for i := range n {
			v, err := strconv.ParseUint(f[i], 10, 64)
			valid = valid && err == nil
			n[i] = v
		}
		if valid {
			out = append(out, &runtimeapi.NetworkInterfaceUsage{
				Name: strings.TrimSpace(name), RxBytes: Value(n[0]), RxErrors: Value(n[2]), TxBytes: Value(n[8]), TxErrors: Value(n[10]),
			})
		}
	}
	return out
}
