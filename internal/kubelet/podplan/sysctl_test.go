package podplan

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestSysctlWithSlashes: sysctl(8) accepts both separators, and so does the API. The first
// separator in the name decides what the other one stands for.
func TestSysctlWithSlashes(t *testing.T) {
	for name, admitted := range map[string]bool{
		"kernel.shm_rmid_forced": true, "kernel/shm_rmid_forced": true, "kernel/shm.rmid_forced": false,
		"net/ipv4/conf/eth0.1/rp_filter": true, "net.ipv4.conf.eth0/1.rp_filter": true, "net.ipv4.conf.eth0.1.rp_filter": false,
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: name, Value: "1"}}}}}
		v := Admit(AdmitInput{Pod: pod, Node: &v1.Node{}, AllowedSysctls: []string{"net/ipv4/conf/eth0.1/*"}})
		if v.Admitted != admitted {
			t.Errorf("%s: %+v", name, v)
		}
	}
}
